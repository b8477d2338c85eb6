//! An echo server over byte streams: its clients connect by address and port, and read and write as over TCP.
//!
//! Shows `RdmaStream` with `tokio::io::split`, `tokio::io::copy`, lines of text, and the end of the stream.
//! Run it with `cargo run --package urxe-tokio --example byte_stream`.

use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use urxe::verbs::cm::*;
use urxe::verbs::*;
use urxe_tokio::*;

type Error = Box<dyn std::error::Error + Send + Sync>;

const CLIENTS: usize = 3;

async fn echo(incoming: Incoming) -> Result<u64, Error> {
    let (mut reader, mut writer) = tokio::io::split(RdmaStream::accept(incoming).await?);
    let bytes = tokio::io::copy(&mut reader, &mut writer).await?;
    writer.shutdown().await?;
    Ok(bytes)
}

async fn server(mut listener: AsyncListener) -> Result<(), Error> {
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        connections.push(tokio::spawn(echo(listener.next().await?)));
    }
    for connection in connections {
        println!("server: returned {} bytes", connection.await??);
    }
    Ok(())
}

async fn client(manager: ConnectionManager, to: SocketAddr, number: usize) -> Result<(), Error> {
    let mut stream = BufReader::new(RdmaStream::connect(&manager, to).await?);
    let mut line = String::new();
    stream.write_all(format!("hello from client {number}\n").as_bytes()).await?;
    stream.read_line(&mut line).await?;
    println!("client {number}: {line:?}");

    // More data than the buffers hold: reads and writes take turns.
    let data: Vec<u8> = (0..1 << 20).map(|i| (i % 251 + number) as u8).collect();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let write = async {
        writer.write_all(&data).await?;
        writer.shutdown().await
    };
    let mut returned = Vec::new();
    tokio::try_join!(write, reader.read_to_end(&mut returned))?;
    assert!(returned == data);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let fabric = Fabric::new();
    let device = Context::on_fabric(&fabric)?;
    let address = (device.address().ok_or("no address")?, 7471).into();
    let listener = AsyncListener::bind(&ConnectionManager::new(vec![device])?, address)?;
    let server = tokio::spawn(server(listener));
    let new_client = |number| -> Result<_, Error> {
        let manager = ConnectionManager::new(vec![Context::on_fabric(&fabric)?])?;
        Ok(tokio::spawn(client(manager, address, number)))
    };
    for client in (0..CLIENTS).map(new_client).collect::<Result<Vec<_>, _>>()? {
        client.await??;
    }
    server.await?
}
