//! What every queue must do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use harness::{
    Clock, ConsumerName, CorrelationId, Delivery, Envelope, QueueError, QueueName, QueuePort,
    Receipt, TenantId,
};

use super::{away, in_the_end};
use crate::db::{job_id, random_id};

/// Calls `$then!` with the names of all cases.
#[macro_export]
macro_rules! queue_cases {
    ($then:ident) => {
        $then! {
            a_message_comes_as_it_was_published,
            bodies_may_be_empty_or_a_megabyte,
            an_empty_queue_gives_nothing,
            no_more_come_than_were_asked_for,
            every_message_comes_once_in_about_this_order,
            clients_that_compete_get_different_messages,
            queues_do_not_mix,
            a_held_message_is_nobody_elses,
            a_lease_that_ran_out_is_a_redelivery_that_counts,
            an_extended_lease_lasts_longer_and_not_for_ever,
            an_acknowledged_message_is_gone,
            an_ack_may_be_repeated,
            an_ack_counts_whoever_holds_the_message,
            b3_a_retry_waits_and_counts,
            b3_a_deferral_waits_and_does_not_count,
            b3_counts_add_up,
            a_receipt_is_good_for_one_answer,
            an_answer_to_an_earlier_delivery_changes_nothing,
            no_two_deliveries_share_a_receipt,
            an_answer_for_a_message_that_is_gone_changes_nothing,
            b7_the_oldest_message_is_seen_wherever_it_is,
            b7_the_enqueue_time_stays,
            what_was_published_survives_the_server,
            what_was_held_survives_the_server_with_its_count,
            an_ack_survives_the_server,
            a_queue_that_is_away_says_so_and_is_usable_again,
        }
    };
}

/// What the suite needs to know of an implementation.
pub trait QueueBench: Sync {
    /// The implementation.
    type Queue: QueuePort;

    /// A client, as one more process would have it. A call to a server that is away should give up within two seconds.
    fn client(&self) -> impl Future<Output = anyhow::Result<Self::Queue>> + Send;

    /// An empty queue that nobody else uses.
    fn fresh(&self) -> impl Future<Output = anyhow::Result<QueueName>> + Send;

    /// The unit in which the suite measures leases and delays: much longer than a call takes. A bench that cannot let time
    /// pass without waiting chooses a short one.
    fn unit(&self) -> Duration;

    /// Time passes, for the leases and delays on a queue.
    fn pass(
        &self,
        queue: &QueueName,
        time: Duration,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// The server dies, without a word. Nobody can reach it.
    fn take_away(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// It is started again, on what it kept.
    fn bring_back(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// For the suite's own waits, which depend on nothing but that the world goes on.
    fn clock(&self) -> &dyn Clock;
}

/// A case, and what was wrong.
pub type Red = (&'static str, String);

macro_rules! dispatch {
    ($($case:ident,)*) => {
        /// All cases.
        pub const CASES: &[&str] = &[$(stringify!($case)),*];

        /// Runs one case.
        ///
        /// # Errors
        /// When the queue does something else than it must.
        pub async fn run<B: QueueBench>(case: &str, bench: &B) -> anyhow::Result<()> {
            match case {
                $(stringify!($case) => $case(bench).await,)*
                other => anyhow::bail!("there is no case {other}"),
            }
        }
    };
}
queue_cases!(dispatch);

/// Runs all cases; answers those that are red.
pub async fn run_all<B: QueueBench>(bench: &B) -> Vec<Red> {
    let mut red = Vec::new();
    for case in CASES {
        if let Err(error) = run(case, bench).await {
            red.push((*case, format!("{error:#}")));
        }
    }
    red
}

/// One client on one fresh queue.
struct On<'a, B: QueueBench> {
    bench: &'a B,
    client: B::Queue,
    queue: QueueName,
    unit: Duration,
}

impl<'a, B: QueueBench> On<'a, B> {
    async fn fresh(bench: &'a B) -> anyhow::Result<Self> {
        Ok(Self {
            bench,
            client: bench.client().await?,
            queue: bench.fresh().await?,
            unit: bench.unit(),
        })
    }

    async fn publish(&self, envelope: &Envelope) -> anyhow::Result<()> {
        self.client
            .publish(&self.queue, envelope)
            .await
            .context("publish")
    }

    /// Publishes a job with nothing special about it.
    async fn publish_one(&self) -> anyhow::Result<Envelope> {
        let envelope = Envelope::new(job_id(), "{}");
        self.publish(&envelope).await?;
        Ok(envelope)
    }

    async fn pass(&self, units: f64) -> anyhow::Result<()> {
        self.bench
            .pass(&self.queue, self.unit.mul_f64(units))
            .await
            .context("pass")
    }

    async fn receive(&self, max: usize, units: u32) -> anyhow::Result<Vec<Delivery>> {
        let lease = self.unit * units;
        self.client
            .receive(&self.queue, max, lease)
            .await
            .context("receive")
    }

    /// Exactly one message is there.
    async fn take(&self, units: u32) -> anyhow::Result<Delivery> {
        let mut deliveries = self.receive(10, units).await?;
        ensure!(
            deliveries.len() == 1,
            "one message was due, {} came",
            deliveries.len()
        );
        deliveries.pop().context("one came")
    }

    /// None is there.
    async fn nothing(&self, why: &str) -> anyhow::Result<()> {
        let deliveries = self.receive(10, 1).await?;
        ensure!(deliveries.is_empty(), "{why}: {deliveries:?} came");
        Ok(())
    }

    /// Not even when everything that could be under way has come.
    async fn nothing_ever(&self, why: &str) -> anyhow::Result<()> {
        self.pass(100.0).await?;
        self.nothing(why).await?;
        let oldest = self.client.oldest(&self.queue).await.context("oldest")?;
        ensure!(oldest.is_none(), "{why}: there is one of {oldest:?}");
        Ok(())
    }

    async fn ack(&self, it: &Delivery) -> anyhow::Result<()> {
        self.client
            .ack(&self.queue, &it.receipt)
            .await
            .context("ack")
    }

    async fn retry(&self, it: &Delivery, units: u32) -> anyhow::Result<()> {
        let delay = self.unit * units;
        self.client
            .retry(&self.queue, &it.receipt, delay)
            .await
            .context("retry")
    }

    async fn defer(&self, it: &Delivery, units: u32) -> anyhow::Result<()> {
        let delay = self.unit * units;
        self.client
            .defer(&self.queue, &it.receipt, delay)
            .await
            .context("defer")
    }

    /// Whatever comes with this receipt, but an ack, is refused because the lease is lost.
    async fn spent(&self, receipt: &Receipt, why: &str) -> anyhow::Result<()> {
        let (client, queue) = (&self.client, &self.queue);
        let answers = [
            ("retry", client.retry(queue, receipt, Duration::ZERO).await),
            ("defer", client.defer(queue, receipt, Duration::ZERO).await),
            (
                "extend",
                client.extend(queue, receipt, self.unit * 50).await,
            ),
        ];
        for (call, answer) in answers {
            ensure!(
                matches!(answer, Err(QueueError::LeaseLost)),
                "{why}, and the answer to {call} is {answer:?}"
            );
        }
        Ok(())
    }

    async fn oldest(&self) -> anyhow::Result<Option<chrono::DateTime<chrono::Utc>>> {
        self.client.oldest(&self.queue).await.context("oldest")
    }

    async fn outage(&self) -> anyhow::Result<()> {
        self.bench.take_away().await.context("take away")?;
        self.bench.bring_back().await.context("bring back")
    }

    /// Receives one message from a server that has just come back.
    async fn take_in_the_end(&self, units: u32) -> anyhow::Result<Delivery> {
        let clock = self.bench.clock();
        in_the_end(clock, "a message comes", async || self.take(units).await).await
    }
}

fn decoded(it: &Delivery) -> anyhow::Result<Envelope> {
    Envelope::decode(&it.queue, it.message.clone())
        .map_err(|malformed| anyhow::anyhow!("{:?}", malformed.error))
}

async fn a_message_comes_as_it_was_published<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    let mut envelope = Envelope::new(job_id(), (0..=255).collect::<Vec<u8>>());
    envelope.tenant_id = Some(TenantId::new(random_id())?);
    envelope.correlation_id = CorrelationId::new("order-17")?;
    envelope.generation = 3;
    envelope.attempts = 2;
    envelope.consumer = Some(ConsumerName::new("awards")?);
    envelope.headers = BTreeMap::from([
        ("x-plain".to_owned(), "a".to_owned()),
        (
            "x-wide".to_owned(),
            "Grüße, 你好 🐟 \"quoted\" \\".to_owned(),
        ),
    ]);
    on.publish(&envelope).await?;
    let it = on.take(1).await?;
    ensure!(it.queue == on.queue, "from {}", it.queue);
    ensure!(it.redeliveries == 0, "{} redeliveries", it.redeliveries);
    let came = decoded(&it)?;
    ensure!(came == envelope, "{envelope:?} came as {came:?}");
    Ok(())
}

async fn bodies_may_be_empty_or_a_megabyte<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    for body in [Vec::new(), vec![0xff; 1 << 20]] {
        let envelope = Envelope::new(job_id(), body);
        on.publish(&envelope).await?;
        let it = on.take(1).await?;
        ensure!(decoded(&it)?.body == envelope.body, "another body came");
        on.ack(&it).await?;
    }
    Ok(())
}

async fn an_empty_queue_gives_nothing<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.nothing_ever("nothing was published").await
}

async fn no_more_come_than_were_asked_for<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    for _ in 0..5 {
        on.publish_one().await?;
    }
    let mut left = 5;
    while left > 0 {
        let came = on.receive(2, 1).await?.len();
        ensure!((1..=2).contains(&came), "asked for 2, {came} came");
        left -= came.min(left);
    }
    on.nothing("all are held").await
}

/// A queue need not keep the order; but a message may not be overtaken by all that come after it.
async fn every_message_comes_once_in_about_this_order<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    const MESSAGES: usize = 20;
    const OVERTAKEN: usize = 8;
    let on = On::fresh(bench).await?;
    let mut published = Vec::new();
    for _ in 0..MESSAGES {
        published.push(on.publish_one().await?.job_id);
    }
    for place in 0..MESSAGES {
        let mut deliveries = on.receive(1, 10).await?;
        let it = deliveries
            .pop()
            .with_context(|| format!("{place} of {MESSAGES} came"))?;
        let job = decoded(&it)?.job_id;
        let at = published.iter().position(|it| *it == job);
        let at = at.context("one that was not published")?;
        ensure!(
            at.abs_diff(place) <= OVERTAKEN,
            "the message at place {at} came at place {place}"
        );
        on.ack(&it).await?;
    }
    on.nothing_ever("all came").await
}

async fn clients_that_compete_get_different_messages<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    const MESSAGES: usize = 24;
    let on = On::fresh(bench).await?;
    for _ in 0..MESSAGES {
        on.publish_one().await?;
    }
    let clients = [
        bench.client().await?,
        bench.client().await?,
        bench.client().await?,
        bench.client().await?,
    ];
    let mut seen = BTreeSet::new();
    // Until a round brings nothing: then all have come, and none twice.
    for _ in 0..=MESSAGES {
        let [a, b, c, d] = clients
            .each_ref()
            .map(|it| it.receive(&on.queue, 3, on.unit));
        let (a, b, c, d) = tokio::join!(a, b, c, d);
        let came = [a?, b?, c?, d?].concat();
        if came.is_empty() {
            break;
        }
        for it in came {
            ensure!(
                seen.insert(it.receipt.message.clone()),
                "{} was given to two at once",
                it.receipt.message
            );
        }
    }
    ensure!(seen.len() == MESSAGES, "{} of {MESSAGES} came", seen.len());
    Ok(())
}

async fn queues_do_not_mix<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    let other = On::fresh(bench).await?;
    let mine = on.publish_one().await?;
    other.nothing("it was published to another queue").await?;
    ensure!(
        other.oldest().await?.is_none(),
        "an oldest in another queue"
    );
    ensure!(decoded(&on.take(1).await?)?.job_id == mine.job_id);
    Ok(())
}

async fn a_held_message_is_nobody_elses<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    on.take(2).await?;
    on.nothing("it is held").await?;
    let somebody = On {
        client: bench.client().await?,
        queue: on.queue.clone(),
        ..on
    };
    somebody.nothing("somebody else holds it").await?;
    somebody.pass(1.0).await?;
    somebody.nothing("half of the lease is left").await
}

async fn a_lease_that_ran_out_is_a_redelivery_that_counts<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    let published = on.publish_one().await?;
    let first = on.take(1).await?;
    on.pass(1.5).await?;
    let second = on.take(1).await?;
    ensure!(
        second.redeliveries == 1,
        "{} redeliveries",
        second.redeliveries
    );
    ensure!(
        second.receipt.message == first.receipt.message,
        "it goes by another name now"
    );
    ensure!(decoded(&second)? == published, "it changed on the way");
    Ok(())
}

async fn an_extended_lease_lasts_longer_and_not_for_ever<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let it = on.take(2).await?;
    on.pass(1.0).await?;
    on.client
        .extend(&on.queue, &it.receipt, on.unit * 2)
        .await
        .context("extend")?;
    on.pass(1.5).await?;
    on.nothing("the lease was extended").await?;
    on.pass(1.0).await?;
    let again = on.take(1).await?;
    ensure!(
        again.redeliveries == 1,
        "{} redeliveries",
        again.redeliveries
    );
    Ok(())
}

async fn an_acknowledged_message_is_gone<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let it = on.take(1).await?;
    on.ack(&it).await?;
    on.nothing_ever("it was acknowledged").await
}

async fn an_ack_may_be_repeated<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let it = on.take(1).await?;
    for _ in 0..3 {
        on.ack(&it).await?;
    }
    Ok(())
}

async fn an_ack_counts_whoever_holds_the_message<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let first = on.take(1).await?;
    on.pass(1.5).await?;
    let second = on.take(1).await?;
    on.ack(&first).await?;
    on.spent(&second.receipt, "it was acknowledged meanwhile")
        .await?;
    on.ack(&second).await?;
    on.nothing_ever("it was acknowledged").await
}

async fn b3_a_retry_waits_and_counts<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    on.retry(&on.take(10).await?, 2).await?;
    on.nothing("it waits").await?;
    on.pass(1.0).await?;
    on.nothing("it waits on").await?;
    on.pass(1.5).await?;
    let it = on.take(10).await?;
    ensure!(it.redeliveries == 1, "{} redeliveries", it.redeliveries);
    on.retry(&it, 0).await?;
    let it = on.take(10).await?;
    ensure!(it.redeliveries == 2, "{} redeliveries", it.redeliveries);
    Ok(())
}

async fn b3_a_deferral_waits_and_does_not_count<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    on.defer(&on.take(10).await?, 2).await?;
    on.nothing("it waits").await?;
    on.pass(1.0).await?;
    on.nothing("it waits on").await?;
    on.pass(1.5).await?;
    let it = on.take(10).await?;
    ensure!(it.redeliveries == 0, "{} redeliveries", it.redeliveries);
    on.defer(&it, 0).await?;
    let it = on.take(10).await?;
    ensure!(it.redeliveries == 0, "{} redeliveries", it.redeliveries);
    Ok(())
}

async fn b3_counts_add_up<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let mut counted = 0;
    for end in "drldrrdlld".chars() {
        let it = on.take(1).await?;
        ensure!(
            it.redeliveries == counted,
            "{} redeliveries, {counted} counted",
            it.redeliveries
        );
        match end {
            'd' => on.defer(&it, 0).await?,
            'r' => on.retry(&it, 0).await?,
            _ => on.pass(1.5).await?,
        }
        counted += u32::from(end != 'd');
    }
    Ok(())
}

/// S6: an answer that is repeated, or was still on its way, must not cut a wait.
async fn a_receipt_is_good_for_one_answer<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let retried = on.take(10).await?;
    on.retry(&retried, 2).await?;
    on.spent(&retried.receipt, "it was given back").await?;
    on.nothing("the wait was cut").await?;
    on.pass(2.5).await?;
    let deferred = on.take(10).await?;
    ensure!(
        deferred.redeliveries == 1,
        "the wait was not one of two units"
    );
    on.defer(&deferred, 2).await?;
    on.spent(&deferred.receipt, "it was given back").await?;
    on.nothing("the wait was cut").await?;
    on.pass(2.5).await?;
    let it = on.take(10).await?;
    ensure!(it.redeliveries == 1, "{} redeliveries", it.redeliveries);
    Ok(())
}

async fn an_answer_to_an_earlier_delivery_changes_nothing<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let lost = on.take(1).await?;
    on.pass(1.5).await?;
    let held = on.take(10).await?;
    on.spent(&lost.receipt, "it was delivered again").await?;
    on.nothing("somebody holds it").await?;
    on.defer(&held, 0).await?;
    // The next delivery has the same count, and is another one.
    let again = on.take(2).await?;
    on.spent(&held.receipt, "it was deferred, and delivered again")
        .await?;
    on.nothing("somebody holds it").await?;
    on.pass(2.5).await?;
    let last = on.take(1).await?;
    ensure!(last.redeliveries == 2, "{} redeliveries", last.redeliveries);
    on.spent(
        &again.receipt,
        "its lease ran out, and it was delivered again",
    )
    .await?;
    on.retry(&last, 0).await
}

async fn no_two_deliveries_share_a_receipt<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let mut receipts = BTreeSet::new();
    for end in "ddrldrdd".chars() {
        let it = on.take(1).await?;
        ensure!(
            receipts.insert(it.receipt.clone()),
            "{:?} was given out before",
            it.receipt
        );
        match end {
            'd' => on.defer(&it, 0).await?,
            'r' => on.retry(&it, 0).await?,
            _ => on.pass(1.5).await?,
        }
    }
    Ok(())
}

async fn an_answer_for_a_message_that_is_gone_changes_nothing<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let it = on.take(1).await?;
    on.ack(&it).await?;
    on.spent(&it.receipt, "it was acknowledged").await?;
    on.nothing_ever("it was acknowledged").await
}

async fn b7_the_oldest_message_is_seen_wherever_it_is<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    ensure!(on.oldest().await?.is_none(), "nothing was published");
    on.publish_one().await?;
    let first = on.oldest().await?.context("it waits")?;
    let held = on.take(1).await?;
    // By the queue's clock, whose steps need not be small.
    let mut younger = 0;
    in_the_end(bench.clock(), "a younger message", async || {
        on.publish_one().await?;
        younger += 1;
        let mut times = on.receive(100, 100).await?;
        ensure!(!times.is_empty(), "it did not come");
        times.retain(|it| it.enqueued_at > first);
        ensure!(!times.is_empty(), "none is younger");
        Ok(())
    })
    .await?;
    ensure!(held.enqueued_at == first, "delivered with another time");
    let still = async |where_it_is: &str| {
        let oldest = on.oldest().await?;
        ensure!(
            oldest == Some(first),
            "{where_it_is}: {oldest:?}, not {first}"
        );
        anyhow::Ok(())
    };
    still("held").await?;
    on.retry(&held, 2).await?;
    still("waiting for a retry").await?;
    on.pass(2.5).await?;
    still("due").await?;
    let held = on.take(1).await?;
    on.defer(&held, 2).await?;
    still("deferred").await?;
    on.pass(2.5).await?;
    let held = on.take(1).await?;
    on.pass(1.5).await?;
    still("its lease ran out").await?;
    on.ack(&held).await?;
    let oldest = on.oldest().await?;
    ensure!(
        oldest.is_some_and(|at| at > first),
        "after its ack: {oldest:?}"
    );
    Ok(())
}

async fn b7_the_enqueue_time_stays<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let first = on.take(1).await?;
    bench.clock().sleep(super::PAUSE).await;
    on.retry(&first, 0).await?;
    for end in "drl.".chars() {
        let it = on.take(1).await?;
        ensure!(
            it.enqueued_at == first.enqueued_at,
            "enqueued at {}, now at {}",
            first.enqueued_at,
            it.enqueued_at
        );
        match end {
            'd' => on.defer(&it, 0).await?,
            'r' => on.retry(&it, 0).await?,
            'l' => on.pass(1.5).await?,
            _ => on.ack(&it).await?,
        }
    }
    Ok(())
}

async fn what_was_published_survives_the_server<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    let published = on.publish_one().await?;
    on.outage().await?;
    let it = on.take_in_the_end(1).await?;
    ensure!(decoded(&it)? == published, "it changed");
    ensure!(it.redeliveries == 0, "{} redeliveries", it.redeliveries);
    Ok(())
}

async fn what_was_held_survives_the_server_with_its_count<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    on.retry(&on.take(1).await?, 0).await?;
    on.take(1).await?;
    on.outage().await?;
    in_the_end(bench.clock(), "time passes again", async || {
        on.pass(1.5).await
    })
    .await?;
    let it = on.take_in_the_end(1).await?;
    ensure!(it.redeliveries == 2, "{} redeliveries", it.redeliveries);
    Ok(())
}

async fn an_ack_survives_the_server<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    on.ack(&on.take(1).await?).await?;
    on.outage().await?;
    in_the_end(bench.clock(), "the queue answers", async || {
        on.oldest().await.map(|_| ())
    })
    .await?;
    on.nothing_ever("it was acknowledged").await
}

async fn a_queue_that_is_away_says_so_and_is_usable_again<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    let published = on.publish_one().await?;
    let held = on.take(100).await?;
    // A client for each call, so that each is made on a connection that was good.
    let mut clients = Vec::new();
    for _ in 0..7 {
        let client = bench.client().await?;
        client.oldest(&on.queue).await.context("oldest")?;
        clients.push(client);
    }
    bench.take_away().await?;
    let (client, queue, clock) = (&on.client, &on.queue, bench.clock());
    let (receipt, second) = (&held.receipt, Duration::from_secs(1));
    // All at once: a client that has noticed that nobody is there may only be trying.
    let (a, b, c, d, e, f, g) = tokio::join!(
        away(clock, "receive", clients[0].receive(queue, 1, second)),
        away(clock, "ack", clients[1].ack(queue, receipt)),
        away(clock, "retry", clients[2].retry(queue, receipt, second)),
        away(clock, "defer", clients[3].defer(queue, receipt, second)),
        away(clock, "extend", clients[4].extend(queue, receipt, second)),
        away(clock, "publish", clients[5].publish(queue, &published)),
        away(clock, "oldest", clients[6].oldest(queue)),
    );
    // Nor on a second call.
    let again = away(clock, "receive", clients[0].receive(queue, 1, second)).await;
    let outcomes = [a, b, c, d, e, f, g, again];
    let wrong: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    let wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
    bench.bring_back().await?;
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    // The same client, and nothing of what it tried had an effect.
    in_the_end(clock, "the lease still holds", async || {
        client.extend(queue, receipt, on.unit).await?;
        Ok(())
    })
    .await?;
    on.pass(1.5).await?;
    let it = on.take(1).await?;
    ensure!(it.redeliveries == 1, "{} redeliveries", it.redeliveries);
    on.ack(&it).await?;
    on.nothing_ever("it was the only one").await
}
