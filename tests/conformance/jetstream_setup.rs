//! What is refused at the start on NATS JetStream, and what a producer in another language may send.

use std::time::Duration;

use acceptance::db::job_id;
use acceptance::nats::{self, Nats};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use harness::{Envelope, JetStreamQueue, Message, QueueError, QueueName, QueuePort as _};

const LEASE: Duration = Duration::from_secs(60);

fn name() -> QueueName {
    QueueName::new("points").unwrap()
}

async fn context(server: &Nats) -> async_nats::jetstream::Context {
    async_nats::jetstream::new(nats::connect(&[server.url()]).await.unwrap())
}

async fn queue(server: &Nats) -> JetStreamQueue {
    nats::queue(&[server.url()], 1).await.unwrap()
}

/// What the queue says to streams and consumers that somebody else made.
async fn said_of(
    messages: impl FnOnce(&mut Config),
    states: impl FnOnce(&mut Config),
    consumer: impl FnOnce(&mut pull::Config),
    server: &Nats,
) -> String {
    let context = context(server).await;
    for stream in ["JOBS_points", "JOBS_points_STATE"] {
        drop(context.delete_stream(stream).await);
    }
    let (mut first, mut second, mut new) = good();
    messages(&mut first);
    states(&mut second);
    consumer(&mut new);
    let made = context.create_stream(first).await.unwrap();
    made.create_consumer(new).await.unwrap();
    context.create_stream(second).await.unwrap();
    match queue(server).await.create(&name()).await {
        Ok(()) => "nothing".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// As the queue itself would make them.
fn good() -> (Config, Config, pull::Config) {
    let messages = Config {
        name: "JOBS_points".to_owned(),
        subjects: vec!["jobs.points".to_owned()],
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        num_replicas: 1,
        ..Config::default()
    };
    let states = Config {
        name: "JOBS_points_STATE".to_owned(),
        subjects: vec![
            "jobs-state.points.message.*".to_owned(),
            "jobs-state.points.time".to_owned(),
        ],
        max_messages_per_subject: 1,
        storage: StorageType::File,
        num_replicas: 1,
        ..Config::default()
    };
    let new = pull::Config {
        durable_name: Some("harness_new".to_owned()),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(5),
        max_deliver: -1,
        max_ack_pending: -1,
        ..pull::Config::default()
    };
    (messages, states, new)
}

#[tokio::test]
async fn b7_a_setting_under_which_jobs_could_be_lost_is_refused_by_name() {
    let server = Nats::start().await.unwrap();
    type OfStream = fn(&mut Config);
    type OfConsumer = fn(&mut pull::Config);
    let nothing: OfStream = |_| {};
    let as_it_is: OfConsumer = |_| {};
    assert_eq!(
        said_of(nothing, nothing, as_it_is, &server).await,
        "nothing",
        "what the queue would make itself"
    );
    let of_messages: [(OfStream, &str); 7] = [
        (
            |it| it.max_age = Duration::from_secs(3_600),
            "`max_age` is 3600s and must be 0ns",
        ),
        (
            |it| it.discard = DiscardPolicy::Old,
            "`discard` is Old and must be New",
        ),
        (
            |it| it.storage = StorageType::Memory,
            "`storage` is Memory and must be File",
        ),
        (
            |it| it.retention = RetentionPolicy::Interest,
            "`retention` is Interest and must be Limits",
        ),
        (
            |it| it.max_messages_per_subject = 7,
            "`max_msgs_per_subject` is 7 and must be -1",
        ),
        (
            |it| it.deny_delete = true,
            "`deny_delete` is true and must be false",
        ),
        (|it| it.no_ack = true, "`no_ack` is true and must be false"),
    ];
    for (change, needed) in of_messages {
        let said = said_of(change, nothing, as_it_is, &server).await;
        assert!(
            said.contains(&format!("stream JOBS_points: {needed}")),
            "{needed}: {said}"
        );
        assert!(said.contains("nats stream edit"), "no way out: {said}");
    }
    let of_states: [(OfStream, &str); 4] = [
        (
            |it| it.max_messages_per_subject = -1,
            "`max_msgs_per_subject` is -1 and must be 1",
        ),
        (
            |it| it.max_messages = 1_000,
            "`max_msgs` is 1000 and must be -1",
        ),
        (
            |it| it.max_bytes = 1 << 20,
            "`max_bytes` is 1048576 and must be -1",
        ),
        (
            |it| it.deny_delete = true,
            "`deny_delete` is true and must be false",
        ),
    ];
    for (change, needed) in of_states {
        let said = said_of(nothing, change, as_it_is, &server).await;
        assert!(
            said.contains(&format!("stream JOBS_points_STATE: {needed}")),
            "{needed}: {said}"
        );
    }
    let of_consumer: [(OfConsumer, &str); 5] = [
        (|it| it.max_deliver = 5, "`max_deliver` is 5 and must be -1"),
        (
            |it| it.max_ack_pending = 100,
            "`max_ack_pending` is 100 and must be -1",
        ),
        (|it| it.ack_wait = LEASE, "`ack_wait` is 60s and must be 5s"),
        (
            |it| it.ack_policy = AckPolicy::All,
            "`ack_policy` is All and must be Explicit",
        ),
        (
            |it| it.headers_only = true,
            "`headers_only` is true and must be false",
        ),
    ];
    for (change, needed) in of_consumer {
        let said = said_of(nothing, nothing, change, &server).await;
        let of = "consumer harness_new of stream JOBS_points: ";
        assert!(said.contains(&format!("{of}{needed}")), "{needed}: {said}");
    }
}

/// A full stream refuses what is published; nothing makes room for it.
#[tokio::test]
async fn b4_a_full_queue_refuses_and_keeps_what_it_has() {
    let server = Nats::start().await.unwrap();
    let said = said_of(|it| it.max_messages = 2, |_| {}, |_| {}, &server).await;
    assert_eq!(said, "nothing", "a bound is allowed");
    let queue = queue(&server).await;
    let envelopes = [(); 3].map(|()| Envelope::new(job_id(), "{}"));
    queue.publish(&name(), &envelopes[0]).await.unwrap();
    queue.publish(&name(), &envelopes[1]).await.unwrap();
    let error = queue.publish(&name(), &envelopes[2]).await.unwrap_err();
    assert!(matches!(error, QueueError::Refused(_)), "{error:?}");
    let came = queue.receive(&name(), 10, LEASE).await.unwrap();
    let came: Vec<_> = came
        .into_iter()
        .map(|it| Envelope::decode(&name(), it.message).unwrap())
        .collect();
    assert_eq!(came, envelopes[..2]);
}

#[tokio::test]
async fn a_queue_that_was_not_created_says_so() {
    let server = Nats::start().await.unwrap();
    let queue = queue(&server).await;
    let error = queue.check(&name()).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "stream JOBS_points is missing: create the queue first"
    );
    let error = queue.receive(&name(), 1, LEASE).await.unwrap_err();
    assert!(matches!(error, QueueError::Refused(_)), "{error:?}");
}

#[tokio::test]
async fn a_message_that_the_server_does_not_take_is_refused_with_the_way_out() {
    let server = Nats::start().await.unwrap();
    let queue = queue(&server).await;
    queue.create(&name()).await.unwrap();
    let envelope = Envelope::new(job_id(), vec![0; 9 << 20]);
    let error = queue.publish(&name(), &envelope).await.unwrap_err();
    let QueueError::Refused(error) = error else {
        panic!("{error:?}");
    };
    assert!(error.to_string().contains("max_payload"), "{error}");
}

/// B5: whatever somebody publishes is handed out, and what cannot be read is handed out as poison.
#[tokio::test]
async fn b5_what_another_producer_sends_is_handed_out() {
    let server = Nats::start().await.unwrap();
    let queue = queue(&server).await;
    queue.create(&name()).await.unwrap();
    let context = context(&server).await;
    let id = job_id();
    let mut good = async_nats::HeaderMap::new();
    good.insert("job-id", id.to_string());
    good.insert("Nats-Msg-Id", "1");
    let mut twice = async_nats::HeaderMap::new();
    twice.append("job-id", "1");
    twice.append("job-id", "2");
    for headers in [good, twice, async_nats::HeaderMap::new()] {
        let stored = context.publish_with_headers("jobs.points", headers, "{}".into());
        stored.await.unwrap().await.unwrap();
    }
    let came = queue.receive(&name(), 10, LEASE).await.unwrap();
    let [good, twice, none] = came.as_slice() else {
        panic!("{came:?}");
    };
    let good = Envelope::decode(&name(), good.message.clone()).unwrap();
    assert_eq!((good.job_id, good.headers.len()), (id, 0));
    assert!(
        matches!(twice.message, Message::Foreign { .. }),
        "{twice:?}"
    );
    assert!(Envelope::decode(&name(), none.message.clone()).is_err());
}

/// A record that is left over, because a worker died between the two halves of an ack, is nobody's job.
#[tokio::test]
async fn what_is_left_of_an_acknowledged_message_is_removed() {
    let server = Nats::start().await.unwrap();
    let queue = queue(&server).await;
    queue.create(&name()).await.unwrap();
    queue
        .publish(&name(), &Envelope::new(job_id(), "{}"))
        .await
        .unwrap();
    let lease = Duration::from_millis(100);
    let held = queue.receive(&name(), 1, lease).await.unwrap().remove(0);
    let context = context(&server).await;
    let messages = context.get_stream("JOBS_points").await.unwrap();
    let sequence = held.receipt.message.parse().unwrap();
    messages.delete_message(sequence).await.unwrap();
    let states = context.get_stream("JOBS_points_STATE").await.unwrap();
    let subject = format!("jobs-state.points.message.{sequence}");
    acceptance::clock::eventually("the record is gone", async || {
        let came = queue.receive(&name(), 1, lease).await.unwrap();
        assert!(came.is_empty(), "{came:?}");
        match states.get_last_raw_message_by_subject(&subject).await {
            Err(_) => Ok(()),
            Ok(record) => Err(format!("a record of {}", record.time)),
        }
    })
    .await;
}
