//! Tests of the byte stream: data both ways with and without loss, ends of streams, failures, flow control.

use std::error::Error as _;
use std::io::{self, ErrorKind};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use urxe::verbs::cm::*;

use super::*;

/// Bytes that a stream accepts while the peer does not read, and some more.
const MORE_THAN_THE_BUFFERS: usize = 512 << 10;

/// Two connected streams, with what keeps their connection managers alive.
struct Pair {
    contexts: [Context; 2],
    client: RdmaStream,
    server: RdmaStream,
    _managers: [ConnectionManager; 2],
    _listener: AsyncListener,
}

impl Pair {
    async fn new(contexts: [Context; 2]) -> Pair {
        let managers =
            contexts.each_ref().map(|context| ConnectionManager::new(vec![context.clone()]).unwrap());
        let address = (contexts[1].query_gid(0).unwrap().ip(), 7471).into();
        let mut listener = AsyncListener::bind(&managers[1], address).unwrap();
        let accept = async { RdmaStream::accept(listener.next().await.unwrap()).await.unwrap() };
        let connect = async { RdmaStream::connect(&managers[0], address).await.unwrap() };
        let (server, client) = tokio::join!(accept, connect);
        Pair { contexts, client, server, _managers: managers, _listener: listener }
    }

    /// Panics if a message found no receive.
    fn assert_no_rnr(&self) {
        for context in &self.contexts {
            assert_eq!(context.counters().send_rnr_err, 0);
        }
    }
}

fn in_virtual_time(seed: u64, loss: f64) -> (Fabric, [Context; 2]) {
    let latency = Duration::from_micros(10);
    let config = FabricConfig::default().seed(seed).latency(latency).loss(loss);
    let fabric = Fabric::virtual_time(config).unwrap();
    let contexts = [(); 2].map(|()| Context::on_fabric(&fabric).unwrap());
    (fabric, contexts)
}

/// Returns data that repeat with a period that does not divide the length of a buffer.
fn data(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251 + i / 251 * salt) as u8).collect()
}

/// Sends and receives at the same time, in pieces of odd lengths, and ends both streams.
async fn exchange(stream: RdmaStream, out: &[u8], expected: &[u8]) -> RdmaStream {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let write = async {
        for piece in out.chunks(10_007) {
            writer.write_all(piece).await.unwrap();
        }
        writer.shutdown().await.unwrap();
    };
    let read = async {
        let mut received = Vec::new();
        reader.read_to_end(&mut received).await.unwrap();
        assert!(received == expected, "{} bytes of {}", received.len(), expected.len());
    };
    tokio::join!(write, read);
    reader.unsplit(writer)
}

async fn megabyte_both_ways(contexts: [Context; 2]) {
    let mut pair = Pair::new(contexts).await;
    let (forth, back) = (data(1 << 20, 3), data(1 << 20, 7));
    (pair.client, pair.server) =
        tokio::join!(exchange(pair.client, &forth, &back), exchange(pair.server, &back, &forth));
    let Pair { contexts, .. } = &pair;
    assert!(contexts.iter().all(|context| context.counters().send_rnr_err == 0));
}

#[test]
fn megabyte_both_ways_arrives_on_a_fabric() {
    run(megabyte_both_ways(on_fabric()));
}

#[test]
fn megabyte_both_ways_arrives_over_udp() {
    run(megabyte_both_ways(over_udp(["127.61.0.17", "127.61.0.18"])));
}

#[test]
fn megabyte_both_ways_arrives_in_virtual_time_with_loss_and_replays() {
    let times = [1, 1, 2, 3].map(|seed| {
        let (fabric, contexts) = in_virtual_time(seed, 0.05);
        run(megabyte_both_ways(contexts));
        assert!(fabric.counters().lost > 0);
        fabric.now().0
    });
    assert_eq!(times[0], times[1]);
    assert_ne!(times[0], times[2]);
}

#[test]
fn halves_of_a_stream_work_in_several_tasks_and_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    runtime.block_on(async {
        let Pair { client, server, _managers, _listener, .. } = Pair::new(on_fabric()).await;
        let (mut server_reader, mut server_writer) = tokio::io::split(server);
        let echo = tokio::spawn(async move {
            tokio::io::copy(&mut server_reader, &mut server_writer).await.unwrap();
            server_writer.shutdown().await.unwrap();
        });
        let (mut reader, mut writer) = tokio::io::split(client);
        let out = data(1 << 20, 5);
        let expected = out.clone();
        let write = tokio::spawn(async move {
            writer.write_all(&out).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        let mut received = Vec::new();
        let limit = tokio::time::timeout(LIMIT, reader.read_to_end(&mut received));
        assert_eq!(limit.await.unwrap().unwrap(), expected.len());
        assert!(received == expected);
        write.await.unwrap();
        echo.await.unwrap();
    });
}

#[test]
fn shut_down_side_still_receives() {
    run(async {
        let (_fabric, contexts) = in_virtual_time(4, 0.1);
        let Pair { mut client, mut server, _managers, _listener, .. } = Pair::new(contexts).await;
        client.write_all(b"request").await.unwrap();
        client.shutdown().await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        let mut request = String::new();
        server.read_to_string(&mut request).await.unwrap();
        assert_eq!(request, "request");
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
        let response = data(100_000, 2);
        let respond = async {
            server.write_all(&response).await.unwrap();
            server.shutdown().await.unwrap();
            drop(server);
        };
        let mut received = Vec::new();
        let (received_len, ()) = tokio::join!(client.read_to_end(&mut received), respond);
        assert_eq!(received_len.unwrap(), response.len());
        assert!(received == response);
    });
}

#[test]
fn both_sides_end_without_an_error_whoever_is_dropped_first() {
    for seed in 0..20 {
        run(async {
            let (_fabric, contexts) = in_virtual_time(seed, 0.2);
            let Pair { client, server, _managers, _listener, .. } = Pair::new(contexts).await;
            let end = |stream| async { drop(exchange(stream, b"data", b"data").await) };
            tokio::join!(end(client), end(server));
        });
    }
}

#[test]
fn disconnect_before_the_end_of_the_stream_resets_the_peer_after_the_data() {
    run(async {
        let (_fabric, contexts) = in_virtual_time(5, 0.1);
        let Pair { mut client, mut server, _managers, _listener, .. } = Pair::new(contexts).await;
        client.write_all(b"partial").await.unwrap();
        client.flush().await.unwrap();
        drop(client);
        let mut received = Vec::new();
        let error = server.read_to_end(&mut received).await.unwrap_err();
        assert_eq!((received.as_slice(), error.kind()), (&b"partial"[..], ErrorKind::ConnectionReset));
        assert_eq!(server.write(b"x").await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(server.shutdown().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn write_to_a_side_that_has_ended_and_gone_fails() {
    run(async {
        let (_fabric, contexts) = in_virtual_time(6, 0.0);
        let Pair { mut client, mut server, _managers, _listener, .. } = Pair::new(contexts).await;
        client.shutdown().await.unwrap();
        drop(client);
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
        let error = loop {
            match server.write_all(&[0; 4096]).await {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error:?}");
    });
}

#[test]
fn killed_peer_ends_writes_and_reads_with_the_failed_request() {
    run(async {
        let (fabric, contexts) = in_virtual_time(7, 0.0);
        let mut pair = Pair::new(contexts).await;
        // Without a disconnect.
        fabric.remove_device(pair.contexts[1].query_gid(0).unwrap().ip()).unwrap();
        let client = &mut pair.client;
        client.write_all(b"lost").await.unwrap();
        let error = client.flush().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let cause = error.get_ref().unwrap().downcast_ref::<WaitError>();
        let Some(WaitError::Failed(completion)) = cause else { panic!("{error:?}") };
        assert_eq!(completion.status, WcStatus::RetryExcErr);
        assert!(error.source().is_none(), "the contained error is the cause");
        for error in [client.read(&mut [0; 8]).await.map(drop), client.write(b"x").await.map(drop)] {
            assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
        }
    });
}

/// Writes until the peer's buffers are full; returns the number of bytes.
async fn fill(stream: &mut RdmaStream, data: &[u8]) -> usize {
    let mut written = 0;
    loop {
        match stream.write(&data[written..]).await {
            Ok(len) => written += len,
            Err(error) => {
                // In virtual time, nothing else can happen.
                let idle = error.get_ref().and_then(|e| e.downcast_ref::<WaitError>());
                assert_eq!(idle, Some(&WaitError::Idle), "{error:?}");
                return written;
            }
        }
        assert!(written < data.len(), "the stream accepts data without end");
    }
}

#[test]
fn slow_reader_holds_up_the_writer_at_the_limit_of_the_buffers() {
    run(async {
        let (_fabric, contexts) = in_virtual_time(8, 0.05);
        let mut pair = Pair::new(contexts).await;
        let out = data(MORE_THAN_THE_BUFFERS, 9);
        let written = fill(&mut pair.client, &out).await;
        assert_eq!(written, 31 * 8192, "one of 32 credits is reserved");
        // The reader takes a little more than half, for which the writer gets credits.
        let mut received = vec![0; 17 * 8192];
        pair.server.read_exact(&mut received).await.unwrap();
        let more = fill(&mut pair.client, &out[written..]).await;
        assert!((16 * 8192..=17 * 8192).contains(&more), "{more}");
        pair.assert_no_rnr();
        let rest = async {
            pair.client.write_all(&out[written + more..]).await.unwrap();
            pair.client.shutdown().await.unwrap();
        };
        let (read, ()) = tokio::join!(pair.server.read_to_end(&mut received), rest);
        read.unwrap();
        assert!(received == out);
        pair.assert_no_rnr();
    });
}

#[test]
fn one_direction_flows_while_the_other_is_held_up() {
    run(async {
        let (_fabric, contexts) = in_virtual_time(9, 0.05);
        let mut pair = Pair::new(contexts).await;
        let (forth, back) = (data(1 << 20, 3), data(MORE_THAN_THE_BUFFERS, 4));
        let held = fill(&mut pair.server, &back).await;
        let mut received = vec![0; forth.len()];
        let (read, written) =
            tokio::join!(pair.server.read_exact(&mut received), pair.client.write_all(&forth));
        read.unwrap();
        written.unwrap();
        assert!(received == forth);
        let mut received = vec![0; held];
        pair.client.read_exact(&mut received).await.unwrap();
        assert!(received == back[..held]);
        pair.assert_no_rnr();
    });
}

#[test]
fn two_full_directions_resume_when_both_sides_read() {
    run(async {
        let (_fabric, contexts) = in_virtual_time(10, 0.05);
        let mut pair = Pair::new(contexts).await;
        let (forth, back) = (data(MORE_THAN_THE_BUFFERS, 3), data(MORE_THAN_THE_BUFFERS, 4));
        let filled = (fill(&mut pair.client, &forth).await, fill(&mut pair.server, &back).await);
        (pair.client, pair.server) = tokio::join!(
            exchange(pair.client, &forth[filled.0..], &back),
            exchange(pair.server, &back[filled.1..], &forth)
        );
        assert!(pair.contexts.iter().all(|context| context.counters().send_rnr_err == 0));
    });
}

#[test]
fn many_small_writes_arrive_in_order() {
    run(async {
        let (_fabric, contexts) = in_virtual_time(11, 0.05);
        let Pair { mut client, mut server, _managers, _listener, .. } = Pair::new(contexts).await;
        let write = async {
            for i in 0..2000_u32 {
                client.write_u32(i).await.unwrap();
            }
            client.flush().await.unwrap();
        };
        let read = async {
            for i in 0..2000 {
                assert_eq!(server.read_u32().await.unwrap(), i);
            }
        };
        tokio::join!(write, read);
    });
}

#[test]
fn writer_goes_on_after_a_reader_has_given_up() {
    run(async {
        let Pair { client, mut server, _managers, _listener, .. } =
            Pair::new(over_udp(["127.61.0.19", "127.61.0.20"])).await;
        let (mut reader, mut writer) = tokio::io::split(client);
        let out = data(MORE_THAN_THE_BUFFERS, 6);
        let expected = out.clone();
        let write = tokio::spawn(async move {
            writer.write_all(&out).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        // The writer is held up when the reader, which waited last, gives up.
        for _ in 0..10 {
            let read = tokio::time::timeout(Duration::from_millis(2), reader.read_u8());
            assert!(read.await.is_err());
        }
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        assert!(received == expected);
        write.await.unwrap();
    });
}

#[test]
fn echo_by_copy_returns_all_data_in_virtual_time_with_loss() {
    run(async {
        let (_fabric, contexts) = in_virtual_time(12, 0.05);
        let Pair { client, server, _managers, _listener, .. } = Pair::new(contexts).await;
        let echo = async {
            let (mut reader, mut writer) = tokio::io::split(server);
            let copied = tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
            copied
        };
        let out = data(300_000, 8);
        let (copied, _client) = tokio::join!(echo, exchange(client, &out, &out));
        assert_eq!(copied, out.len() as u64);
    });
}

/// Connects a stream to a queue pair that has the given private data; returns both ends.
async fn connected_to_queue_pair(private_data: &[u8]) -> (Result<RdmaStream, urxe::Error>, AsyncSession) {
    let [local, remote] = on_fabric();
    let address = (remote.query_gid(0).unwrap().ip(), 7471).into();
    let [client, server] = [local, remote].map(|context| ConnectionManager::new(vec![context]).unwrap());
    let mut listener = AsyncListener::bind(&server, address).unwrap();
    let accept = async {
        let incoming = listener.next().await.unwrap();
        let context = incoming.context().unwrap();
        let cq = context.create_cq(8).unwrap();
        let qp = context.alloc_pd().unwrap().create_qp(&cq, &cq, &QpOptions::default()).unwrap();
        AsyncSession::accept(incoming, qp, &ConnParam::with_data(private_data)).await.unwrap()
    };
    let (session, stream) = tokio::join!(accept, RdmaStream::connect(&client, address));
    (stream, session)
}

#[test]
fn message_that_violates_the_protocol_ends_the_stream() {
    run(async {
        let too_many_credits = SendWr::send_imm(0, &[], 1);
        for message in [SendWr::send(0, &[]), too_many_credits] {
            let (stream, session) = connected_to_queue_pair(b"urxe byte stream 1").await;
            session.qp().post_send(&message).unwrap();
            let mut stream = stream.unwrap();
            assert_eq!(stream.read(&mut [0; 8]).await.unwrap_err().kind(), ErrorKind::InvalidData);
            assert_eq!(stream.write(b"x").await.unwrap_err().kind(), ErrorKind::InvalidData);
        }
    });
}

#[test]
fn peer_that_is_no_stream_is_refused() {
    run(async {
        let (refused, _session) = connected_to_queue_pair(b"something else").await;
        let Err(urxe::Error::Io(error)) = refused else { panic!("{refused:?}") };
        assert_eq!(io::Error::kind(&error), ErrorKind::InvalidData);
    });
}
