// A client of the official Rust SDK: `client URL modern|legacy`. It talks to
// tests/http/server_for_http.py, and prints what it has got as one JSON object.
use std::{
    env,
    sync::{Arc, Mutex},
};

use rmcp::{
    model::{
        CallToolRequestParams, ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult,
        ElicitationAction, ErrorData, Implementation, ProgressNotificationParam, ProtocolVersion,
        ReadResourceRequestParams,
    },
    service::{ClientLifecycleMode, ClientServiceExt, NotificationContext, RequestContext},
    transport::StreamableHttpClientTransport,
    ClientHandler, RoleClient,
};
use serde_json::{json, Value};

type Failure = Box<dyn std::error::Error>;

#[derive(Clone, Default)]
struct Person {
    progress: Arc<Mutex<Vec<f64>>>,
}

impl ClientHandler for Person {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("rust", "1"))
    }

    async fn create_elicitation(
        &self,
        _request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({"name": "Ada"})))
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.progress.lock().unwrap().push(params.progress);
    }
}

fn call(name: &'static str, arguments: Value) -> CallToolRequestParams {
    CallToolRequestParams::new(name).with_arguments(arguments.as_object().cloned().unwrap())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let lifecycle = match arguments[1].as_str() {
        "modern" => ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        },
        _ => ClientLifecycleMode::Initialize,
    };
    let transport = StreamableHttpClientTransport::from_uri(arguments[0].clone());
    let person = Person::default();
    let client = person.clone().serve_with_lifecycle(transport, lifecycle).await?;

    let tools: Vec<String> = client
        .list_all_tools()
        .await?
        .into_iter()
        .map(|tool| tool.name.to_string())
        .collect();
    let mut sums = Vec::new();
    for number in 0..20 {
        sums.push(client.call_tool(call("add", json!({"a": number, "b": 1}))));
    }
    let mut results = Vec::new();
    for sum in sums {
        results.push(serde_json::to_value(sum.await?)?["content"][0]["text"].clone());
    }
    let large = serde_json::to_value(client.call_tool(call("large", json!({"size": 500000}))).await?)?;
    let counted = serde_json::to_value(client.call_tool(call("count", json!({}))).await?)?;
    let asked = serde_json::to_value(client.call_tool(call("ask", json!({}))).await?)?;
    let refused = serde_json::to_value(client.call_tool(call("add", json!({"a": "x", "b": 1}))).await?)?;
    let note = client
        .read_resource(ReadResourceRequestParams::new("text://note"))
        .await?;
    let missing = client
        .read_resource(ReadResourceRequestParams::new("text://none"))
        .await;
    let info = client.peer_info().expect("the server has described itself");
    let printed = json!({
        "version": info.protocol_version,
        "server": info.server_info.as_ref().map(|server| server.name.clone()),
        "tools": tools,
        "sums": results,
        "large": large["content"][0]["text"].as_str().map(str::len),
        "counted": counted["content"][0]["text"],
        "progress": *person.progress.lock().unwrap(),
        "asked": asked["content"][0]["text"],
        "refused": refused["isError"],
        "note": serde_json::to_value(note)?["contents"][0]["text"],
        "missing": missing.err().map(|error| error.to_string()),
    });
    println!("{printed}");
    client.cancel().await?;
    Ok(())
}
