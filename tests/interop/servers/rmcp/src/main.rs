// The official Rust SDK, as its users write it: `echo` on stdio, `echo PORT [stateless]` over HTTP.
use std::{env, sync::Arc};

use rmcp::{
    handler::server::wrapper::Parameters,
    schemars, tool, tool_handler, tool_router,
    transport::{
        stdio,
        streamable_http_server::{
            session::local::LocalSessionManager, StreamableHttpServerConfig, StreamableHttpService,
        },
    },
    ServerHandler, ServiceExt,
};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct EchoArguments {
    text: String,
}

#[derive(Clone)]
struct Echo;

#[tool_router]
impl Echo {
    #[tool(description = "Return the text.")]
    fn echo(&self, Parameters(arguments): Parameters<EchoArguments>) -> String {
        arguments.text
    }
}

#[tool_handler]
impl ServerHandler for Echo {}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let Some(port) = arguments.first() else {
        Echo.serve(stdio()).await?.waiting().await?;
        return Ok(());
    };

    let is_stateless = arguments.len() > 1;
    let mut config = StreamableHttpServerConfig::default();
    config.json_response = is_stateless;
    config.legacy_session_mode = !is_stateless;
    let service = StreamableHttpService::new(
        || Ok(Echo),
        Arc::new(LocalSessionManager::default()),
        config,
    );
    let router = axum::Router::new().nest_service("/mcp", service);
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    axum::serve(listener, router).await?;
    Ok(())
}
