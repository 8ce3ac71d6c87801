// A client of the official Rust SDK: `stdio_client modern|auto|legacy COMMAND ARGUMENT...`. It starts
// a server, lists its tools, and prints the error that a user of the SDK gets; nothing if there is
// none.
use std::env;

use rmcp::{
    model::ProtocolVersion,
    service::{ClientLifecycleMode, ClientServiceExt},
    transport::TokioChildProcess,
};
use tokio::process::Command;

async fn list_tools(lifecycle: ClientLifecycleMode, command: Command) -> Result<(), Box<dyn std::error::Error>> {
    let client = ().serve_with_lifecycle(TokioChildProcess::new(command)?, lifecycle).await?;
    client.list_all_tools().await?;
    client.cancel().await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    let lifecycle = match arguments[0].as_str() {
        "modern" => ClientLifecycleMode::Discover { preferred_versions },
        "auto" => ClientLifecycleMode::Auto { preferred_versions, legacy_version: None },
        _ => ClientLifecycleMode::Initialize,
    };
    let mut command = Command::new(&arguments[1]);
    command.args(&arguments[2..]);
    if let Err(error) = list_tools(lifecycle, command).await {
        // As Rust prints the error of `main`: the shorter text of `auto` names no cause.
        println!("{error:?}");
    }
}
