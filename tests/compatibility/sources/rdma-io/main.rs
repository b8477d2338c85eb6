//! Echoes 4 MiB over two transports of rdma-io (SEND; WRITE with credits), and compares the data. Its third one, WRITE and
//! READ, stops at times on any adapter: when the READ that finds free space completes, `poll_send_completion` goes on waiting for
//! a WRITE that the writer posts only after this call.
use std::time::Duration;

use rdma_io::async_cm::AsyncCmListener;
use rdma_io::async_stream::AsyncRdmaStream;
use rdma_io::credit_ring_transport::CreditRingConfig;
use rdma_io::send_recv_transport::SendRecvConfig;
use rdma_io::transport::TransportBuilder;

const SIZE: usize = 4 << 20;

async fn echo<B: TransportBuilder>(name: &str, port: u16, config: B)
where
    B::Transport: Unpin,
{
    let address = ([127, 0, 0, 1], port).into();
    let listener = AsyncCmListener::bind(&address).expect("bind");
    let (server, client) = tokio::join!(config.accept(&listener), config.connect(&address));
    let mut server = AsyncRdmaStream::new(server.expect("accept"));
    let mut client = AsyncRdmaStream::new(client.expect("connect"));
    let data: Vec<u8> = (0..SIZE).map(|i| (i * 7 + i / 251) as u8).collect();
    let server = tokio::spawn(async move {
        let mut buffer = vec![0; 100_000];
        let mut echoed = 0;
        while echoed < SIZE {
            let count = server.read(&mut buffer).await.expect("the server reads");
            server.write_all(&buffer[..count]).await.expect("the server writes");
            echoed += count;
        }
        server
    });
    let mut buffer = vec![0; 20_000];
    for (index, chunk) in data.chunks(buffer.len()).enumerate() {
        client.write_all(chunk).await.expect("the client writes");
        let mut received = 0;
        while received < chunk.len() {
            received += client.read(&mut buffer[received..chunk.len()]).await.expect("the client reads");
        }
        assert!(buffer[..chunk.len()] == *chunk, "{name}: other data in chunk {index}");
    }
    drop(server.await.expect("the server ends"));
    println!("{name}: {SIZE} bytes echoed");
}

#[tokio::main]
async fn main() {
    let all = async {
        echo("SEND", 7001, SendRecvConfig::stream()).await;
        echo("WRITE with credits", 7002, CreditRingConfig::default()).await;
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("done within a minute");
}
