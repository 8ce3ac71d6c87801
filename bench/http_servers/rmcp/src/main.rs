// The official Rust SDK over HTTP: `rmcp_http PORT [stateless]`.
use std::{env, sync::Arc};

use rmcp::{
    handler::server::wrapper::Parameters,
    schemars, tool, tool_handler, tool_router,
    transport::streamable_http_server::{
        session::local::LocalSessionManager, StreamableHttpServerConfig, StreamableHttpService,
    },
    ServerHandler,
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

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().collect();
    let mut config = StreamableHttpServerConfig::default();
    config.json_response = arguments.len() > 2;
    config.legacy_session_mode = arguments.len() <= 2;
    let service = StreamableHttpService::new(
        || Ok(Echo),
        Arc::new(LocalSessionManager::default()),
        config,
    );
    let router = axum::Router::new().nest_service("/mcp", service);
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{}", arguments[1])).await?;
    axum::serve(listener, router).await?;
    Ok(())
}
