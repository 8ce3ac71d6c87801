// A server of the official Rust SDK: `echo` on stdio, `echo PORT [stateless]` over HTTP.
use std::{env, sync::Arc};

use rmcp::{
    handler::server::wrapper::Parameters,
    model::{
        ListResourceTemplatesResult, ListResourcesResult, PaginatedRequestParams, PromptMessage,
        ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource,
        ResourceContents, ResourceTemplate, Role, ServerCapabilities, ServerConfig,
    },
    prompt, prompt_handler, prompt_router, schemars,
    service::RequestContext,
    tool, tool_handler, tool_router,
    transport::{
        stdio,
        streamable_http_server::{
            session::local::LocalSessionManager, StreamableHttpServerConfig, StreamableHttpService,
        },
    },
    ErrorData, RoleServer, ServerHandler, ServiceExt,
};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct EchoArguments {
    text: String,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct GreetArguments {
    name: String,
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

#[prompt_router]
impl Echo {
    #[prompt]
    fn greet(&self, Parameters(arguments): Parameters<GreetArguments>) -> Vec<PromptMessage> {
        vec![PromptMessage::new_text(Role::User, format!("Greet {}", arguments.name))]
    }
}

#[tool_handler]
#[prompt_handler]
impl ServerHandler for Echo {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder();
        ServerConfig::new(capabilities.enable_tools().enable_prompts().enable_resources().build())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(vec![Resource::new("text://note", "note")]))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let notes = ResourceTemplate::new("text://notes/{id}", "notes");
        Ok(ListResourceTemplatesResult::with_all_items(vec![notes]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        if !request.uri.starts_with("text://") {
            return Err(ErrorData::resource_not_found("Resource not found", None));
        }
        let contents = vec![ResourceContents::text("hé", request.uri)];
        Ok(ReadResourceResult::new(contents).into())
    }
}

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
