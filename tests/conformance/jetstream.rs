//! NATS JetStream under the suite. Time passes by waiting.

use std::time::Duration;

use acceptance::conformance::queue::{self, QueueBench};
use acceptance::db::random_id;
use acceptance::nats::{self, Nats};
use harness::{Clock, JetStreamQueue, QueueName, SystemClock};
use tokio::sync::Mutex;

/// The suite's unit. The server counts in milliseconds, and a machine that builds at the same time may take a few hundred
/// for a call.
const UNIT: Duration = Duration::from_secs(1);

/// Longer than any lease or delay that a case still has under way when it says "ever": those that are longer end with an
/// answer.
const EVER: Duration = Duration::from_secs(12);

struct JetStream {
    server: Mutex<Nats>,
    url: String,
    clock: SystemClock,
}

impl JetStream {
    async fn start() -> Self {
        let server = Nats::start()
            .await
            .unwrap_or_else(|error| panic!("{error:#}"));
        Self {
            url: server.url(),
            server: Mutex::new(server),
            clock: SystemClock::new(),
        }
    }
}

impl QueueBench for JetStream {
    type Queue = JetStreamQueue;

    async fn client(&self) -> anyhow::Result<JetStreamQueue> {
        nats::queue(std::slice::from_ref(&self.url), 1).await
    }

    async fn fresh(&self) -> anyhow::Result<QueueName> {
        let queue = QueueName::new(&format!("q{}", random_id().simple()))?;
        self.client().await?.create(&queue).await?;
        Ok(queue)
    }

    fn unit(&self) -> Duration {
        UNIT
    }

    async fn pass(&self, _queue: &QueueName, time: Duration) -> anyhow::Result<()> {
        self.clock.sleep(time.min(EVER)).await;
        Ok(())
    }

    async fn take_away(&self) -> anyhow::Result<()> {
        self.server.lock().await.kill()
    }

    async fn bring_back(&self) -> anyhow::Result<()> {
        self.server.lock().await.restart().await
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }
}

macro_rules! on_jetstream {
    ($($case:ident,)*) => { $(
        #[tokio::test]
        async fn $case() {
            let bench = JetStream::start().await;
            queue::run(stringify!($case), &bench).await.unwrap();
        }
    )* };
}
acceptance::queue_cases!(on_jetstream);
