//! `dead-letters`: list, show, replay, discard.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::pin::pin;

use anyhow::Context as _;
use chrono::{DateTime, SecondsFormat, Utc};
use clap::{Args, Subcommand, ValueEnum};
use futures_util::StreamExt as _;
use harness::ops::letter_json;
use harness::{
    ConsumerName, CorrelationId, CountStore as _, DeadLetter, DeadLetterId, Decided, Decision,
    DiscardReason, Env, JobId, LetterFilter, LetterOrder, LetterPlace, LetterQuery,
    PendingStore as _, QueueName, Reason, Review, ReviewStore as _, Reviewer, Status, TenantId,
};
use indicatif::{ProgressBar, ProgressStyle};
use uuid::Uuid;

use super::database::{Opened, opened};
use super::output::{Format, cut, out, printable, table};
use super::{Common, Partly, Wrong};

/// Read at once.
const PAGE: u32 = 200;
/// Kinds that are counted.
const KINDS: u32 = 100;
/// Refusals and failures that are told one by one.
const TOLD: usize = 10;

#[derive(Subcommand)]
pub(crate) enum DeadLetters {
    /// Lists those that fit, one line each (or one JSON document each).
    #[command(after_help = "Examples:\n  \
        job-harness dead-letters list --status pending_review --order oldest\n  \
        job-harness dead-letters list --counts\n  \
        job-harness dead-letters list --error-contains 'no such account' --limit 0 --format json | jq .job_id")]
    List(List),
    /// Shows one, whole.
    Show {
        /// Which.
        id: Uuid,
    },
    /// Publishes pending ones again, with the same job ids: those that are named, or all that fit and are pending now.
    #[command(after_help = "Examples:\n  \
        job-harness dead-letters replay 0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01 --by ada\n  \
        job-harness dead-letters replay --fingerprint points/awards/exhausted/timeout --dry-run\n  \
        job-harness dead-letters replay --queue points --created-from 2026-01-31T12:00:00Z --by ada --yes\n\n\
        Safe to run again: what was replayed before is not published a second time.")]
    Replay(Decide),
    /// Gives pending ones up, for ever: those that are named, or all that fit and are pending now.
    #[command(after_help = "Examples:\n  \
        job-harness dead-letters discard 0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01 --reason 'account was closed' --by ada\n  \
        job-harness dead-letters discard --fingerprint points/awards/poison/poison:json --reason 'test data' --by ada")]
    Discard {
        #[command(flatten)]
        decide: Decide,
        /// Why; kept with each letter.
        #[arg(long)]
        reason: String,
    },
}

/// Which letters. Everything that is given must hold.
#[derive(Args)]
pub(crate) struct Filter {
    #[arg(long)]
    queue: Option<QueueName>,
    #[arg(long)]
    consumer: Option<ConsumerName>,
    #[arg(long, value_name = "UUID")]
    tenant_id: Option<TenantId>,
    /// exhausted, hard, or poison.
    #[arg(long)]
    reason_is: Option<Reason>,
    #[arg(long, value_name = "UUID")]
    job_id: Option<JobId>,
    #[arg(long, value_name = "ID")]
    correlation_id: Option<String>,
    /// Queue, consumer, reason and error class, with slashes: the kind of failure that an incident names.
    #[arg(long)]
    fingerprint: Option<String>,
    /// Written at this time (RFC 3339) or later.
    #[arg(long, value_name = "TIME")]
    created_from: Option<DateTime<Utc>>,
    /// Written before this time (RFC 3339).
    #[arg(long, value_name = "TIME")]
    created_before: Option<DateTime<Utc>>,
    /// The error says this somewhere.
    #[arg(long, value_name = "TEXT")]
    error_contains: Option<String>,
}

impl Filter {
    fn built(&self, status: Option<Status>) -> anyhow::Result<LetterFilter> {
        let nul = |text: &Option<String>| text.as_ref().is_some_and(|it| it.contains('\0'));
        if nul(&self.fingerprint) || nul(&self.error_contains) {
            let text = "--fingerprint, --error-contains: U+0000 is in no dead letter";
            return Err(Wrong(text.to_owned()).into());
        }
        let correlation_id = self.correlation_id.as_deref().map(CorrelationId::new);
        let correlation_id = correlation_id
            .transpose()
            .map_err(|error| Wrong(format!("--correlation-id: {error}")))?;
        Ok(LetterFilter {
            status,
            queue: self.queue.clone(),
            consumer: self.consumer.clone(),
            tenant_id: self.tenant_id,
            reason: self.reason_is,
            job_id: self.job_id,
            correlation_id,
            fingerprint: self.fingerprint.clone(),
            created_from: self.created_from,
            created_before: self.created_before,
            error_contains: self.error_contains.clone(),
        })
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Order {
    Newest,
    Oldest,
}

#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    filter: Filter,
    /// pending_review, replayed, or discarded.
    #[arg(long)]
    status: Option<Status>,
    #[arg(long, value_enum, default_value = "newest")]
    order: Order,
    /// At most so many; 0 for all.
    #[arg(long, default_value_t = 50)]
    limit: u64,
    /// How many there are of each kind, instead of the letters.
    #[arg(long)]
    counts: bool,
}

#[derive(Args)]
pub(crate) struct Decide {
    /// These.
    #[arg(value_name = "ID")]
    ids: Vec<Uuid>,
    #[command(flatten)]
    filter: Filter,
    /// All that are pending.
    #[arg(long)]
    all: bool,
    /// Only says what would be decided.
    #[arg(long)]
    dry_run: bool,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
    /// Who decides; kept with each letter.
    #[arg(long, value_name = "NAME", env = "JOB_HARNESS_BY")]
    by: Option<String>,
}

impl DeadLetters {
    pub(crate) async fn run(&self, common: &Common) -> anyhow::Result<()> {
        match self {
            Self::List(list) if list.counts => list.counts(common).await,
            Self::List(list) => list.letters(common).await,
            Self::Show { id } => show(common, DeadLetterId(*id)).await,
            Self::Replay(decide) => decide.run(common, Decision::Replay).await,
            Self::Discard { decide, reason } => {
                let reason = DiscardReason::new(reason)
                    .map_err(|error| Wrong(format!("--reason: {error}")))?;
                decide.run(common, Decision::Discard(reason)).await
            }
        }
    }
}

fn at(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

fn cells(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

impl List {
    async fn counts(&self, common: &Common) -> anyhow::Result<()> {
        let filter = self.filter.built(self.status)?;
        let Opened { store, .. } = opened(common).await?;
        let counts = store.count_dead_letters(&filter, KINDS).await?;
        let mut out = out();
        if common.format == Format::Json {
            for it in &counts {
                let line = serde_json::json!({
                    "fingerprint": it.fingerprint, "letters": it.letters,
                    "first_at": it.first_at, "last_at": it.last_at,
                });
                writeln!(out, "{line}")?;
            }
            return Ok(());
        }
        let mut rows = vec![cells(&["LETTERS", "FIRST", "LAST", "FINGERPRINT"])];
        rows.extend(counts.iter().map(|it| {
            let letters = it.letters.to_string();
            vec![
                letters,
                at(it.first_at),
                at(it.last_at),
                printable(&it.fingerprint),
            ]
        }));
        Ok(table(&mut out, &rows)?)
    }

    async fn letters(&self, common: &Common) -> anyhow::Result<()> {
        let order = match self.order {
            Order::Newest => LetterOrder::NewestFirst,
            Order::Oldest => LetterOrder::OldestFirst,
        };
        let mut query = LetterQuery {
            filter: self.filter.built(self.status)?,
            order,
            after: None,
            limit: PAGE,
        };
        let Opened { store, .. } = opened(common).await?;
        let mut left = if self.limit == 0 {
            u64::MAX
        } else {
            self.limit
        };
        let mut out = out();
        let mut shown = 0_u64;
        while left > 0 {
            query.limit = u32::try_from(left).unwrap_or(PAGE).min(PAGE);
            let page = store.dead_letters(&query).await?;
            let Some(last) = page.last() else { break };
            query.after = Some(LetterPlace::of(last));
            let got = page.len() as u64;
            let mut rows = Vec::new();
            if shown == 0 {
                rows.push(cells(&[
                    "ID", "WRITTEN", "STATUS", "QUEUE", "CONSUMER", "REASON", "RUNS", "ERROR",
                ]));
            }
            for letter in page {
                match common.format {
                    Format::Json => writeln!(out, "{}", letter_json(letter, false))?,
                    Format::Text => rows.push(line_of(&letter)),
                }
            }
            if common.format == Format::Text {
                table(&mut out, &rows)?;
            }
            shown += got;
            left -= got.min(left);
            if got < u64::from(query.limit) {
                break;
            }
        }
        if shown == 0 && common.format == Format::Text {
            writeln!(out, "none")?;
        }
        Ok(())
    }
}

fn line_of(it: &DeadLetter) -> Vec<String> {
    let letter = &it.letter;
    vec![
        letter.id.to_string(),
        at(it.created_at),
        it.status.to_string(),
        letter.queue.to_string(),
        letter.consumer.to_string(),
        letter.reason.to_string(),
        letter.attempts.to_string(),
        cut(&printable(&letter.last_error), 60),
    ]
}

async fn show(common: &Common, id: DeadLetterId) -> anyhow::Result<()> {
    let Opened { store, .. } = opened(common).await?;
    let found = store.dead_letter(id).await?;
    let it = found.with_context(|| format!("there is no dead letter {id}"))?;
    let mut out = out();
    if common.format == Format::Json {
        writeln!(out, "{}", letter_json(it, true))?;
        return Ok(());
    }
    let letter = &it.letter;
    let mut rows = vec![
        vec!["id".to_owned(), letter.id.to_string()],
        vec!["status".to_owned(), it.status.to_string()],
        vec!["written".to_owned(), at(it.created_at)],
        vec!["job id".to_owned(), letter.job_id.to_string()],
        vec![
            "correlation id".to_owned(),
            letter.correlation_id.to_string(),
        ],
        vec!["fingerprint".to_owned(), printable(&letter.fingerprint())],
        vec!["generation".to_owned(), letter.generation.to_string()],
        vec!["runs".to_owned(), letter.attempts.to_string()],
    ];
    let optional = [
        ("tenant id", letter.tenant_id.map(|it| it.to_string())),
        ("decided", it.reviewed_at.map(at)),
        ("by", it.reviewed_by.as_deref().map(printable)),
        (
            "discard reason",
            it.discard_reason.as_deref().map(printable),
        ),
    ];
    for (name, value) in optional {
        rows.extend(value.map(|value| vec![name.to_owned(), value]));
    }
    table(&mut out, &rows)?;
    writeln!(out, "\nerror")?;
    for line in letter.last_error.lines() {
        writeln!(out, "  {}", printable(line))?;
    }
    writeln!(out, "\nheaders\n  {}", printable(&letter.headers))?;
    writeln!(
        out,
        "\npayload ({} bytes as received)\n  {}",
        letter.body.len(),
        printable(&letter.payload)
    )?;
    Ok(())
}

impl Decide {
    async fn run(&self, common: &Common, decision: Decision) -> anyhow::Result<()> {
        let filter = self.filter.built(None)?;
        let filtered = filter != LetterFilter::default();
        let ways = [!self.ids.is_empty(), filtered, self.all];
        if ways.iter().filter(|given| **given).count() != 1 {
            let text = "which ones? Give ids, or filters, or --all; one of the three";
            return Err(Wrong(text.to_owned()).into());
        }
        let by = self.by.as_deref().map(Reviewer::new).transpose();
        let by = by.map_err(|error| Wrong(format!("--by: {error}")))?;
        let opened = opened(common).await?;
        let (what, done) = match decision {
            Decision::Replay => ("replay", "replayed"),
            Decision::Discard(_) => ("discard", "discarded"),
        };
        // What is there now; what is written from here on is for another time.
        let ids: Vec<DeadLetterId> = match self.ids.is_empty() {
            false => self.ids.iter().copied().map(DeadLetterId).collect(),
            true => opened.store.pending(&filter).await?,
        };
        if self.dry_run {
            return self.tell(common, &opened, &filter, &ids, what).await;
        }
        let Some(by) = by else {
            let text = "--by: say who decides, or set JOB_HARNESS_BY; it is kept with each letter";
            return Err(Wrong(text.to_owned()).into());
        };
        if self.ids.is_empty() && !ids.is_empty() && !self.yes {
            confirm(what, ids.len())?;
        }
        let review = Review::new(opened.store.clone(), opened.queue.clone(), Env::system()?);
        let summary = decide_all(&review, &ids, &decision, &by).await;
        summary.print(common, done)
    }

    /// Of `--dry-run`.
    async fn tell(
        &self,
        common: &Common,
        opened: &Opened,
        filter: &LetterFilter,
        ids: &[DeadLetterId],
        what: &str,
    ) -> anyhow::Result<()> {
        let pending = LetterFilter {
            status: Some(Status::PendingReview),
            ..filter.clone()
        };
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        if self.ids.is_empty() {
            for it in opened.store.count_dead_letters(&pending, KINDS).await? {
                kinds.insert(it.fingerprint, it.letters);
            }
        } else {
            for id in ids {
                let kind = match opened.store.dead_letter(*id).await? {
                    Some(it) if it.status == Status::PendingReview => it.letter.fingerprint(),
                    Some(it) => format!("{id} is {} already", it.status),
                    None => format!("{id} is no dead letter"),
                };
                *kinds.entry(kind).or_default() += 1;
            }
        }
        let mut out = out();
        if common.format == Format::Json {
            let line = serde_json::json!({ "would": what, "letters": ids.len(), "kinds": kinds });
            writeln!(out, "{line}")?;
            return Ok(());
        }
        writeln!(
            out,
            "would {what} {} dead letters; nothing was changed",
            ids.len()
        )?;
        let rows: Vec<_> = (kinds.iter())
            .map(|(kind, letters)| vec![format!("  {letters}"), printable(kind)])
            .collect();
        Ok(table(&mut out, &rows)?)
    }
}

fn confirm(what: &str, letters: usize) -> anyhow::Result<()> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let text = format!(
            "this would {what} {letters} dead letters, and there is nobody to ask; look with --dry-run, then say --yes"
        );
        return Err(Wrong(text).into());
    }
    write!(std::io::stderr(), "{what} {letters} dead letters? [y/N] ")?;
    let mut answer = String::new();
    stdin.read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Wrong("nothing was changed".to_owned()).into())
}

/// What became of all of them.
#[derive(Default)]
struct Summary {
    done: u64,
    already: u64,
    refused: u64,
    failed: u64,
    not_tried: u64,
    told: Vec<String>,
}

async fn decide_all<S, P>(
    review: &Review<S, P>,
    ids: &[DeadLetterId],
    decision: &Decision,
    by: &Reviewer,
) -> Summary
where
    S: harness::ReviewStore,
    P: harness::ReplayPublisher<S>,
{
    // On standard error, and only if that is a terminal.
    let bar = ProgressBar::new(ids.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {per_sec}, {eta} left") {
        bar.set_style(style);
    }
    let mut summary = Summary::default();
    let mut decided = pin!(review.decide_all(ids, decision, by));
    while let Some((id, it)) = decided.next().await {
        bar.inc(1);
        let (count, text) = match it {
            Decided::Done => (&mut summary.done, None),
            Decided::Already => (&mut summary.already, None),
            Decided::Refused(text) => (&mut summary.refused, Some(text)),
            Decided::Failed(text) => (&mut summary.failed, Some(text)),
            Decided::NotTried => (&mut summary.not_tried, None),
        };
        *count += 1;
        if let Some(text) = text.filter(|_| summary.told.len() < TOLD) {
            summary.told.push(format!("{id}: {}", printable(&text)));
        }
    }
    bar.finish_and_clear();
    summary
}

impl Summary {
    fn print(&self, common: &Common, done: &str) -> anyhow::Result<()> {
        let mut out = out();
        let Self {
            done: now,
            already,
            refused,
            failed,
            not_tried,
            told,
        } = self;
        match common.format {
            Format::Json => {
                let line = serde_json::json!({
                    done: now, "already": already, "refused": refused, "failed": failed,
                    "not_tried": not_tried, "problems": told,
                });
                writeln!(out, "{line}")?;
            }
            Format::Text => {
                writeln!(
                    out,
                    "{now} {done}, {already} were before, {refused} refused, {failed} failed, {not_tried} not tried"
                )?;
                for it in told {
                    writeln!(out, "  {it}")?;
                }
            }
        }
        if failed + not_tried > 0 {
            return Err(Partly::Away.into());
        }
        match refused {
            0 => Ok(()),
            _ => Err(Partly::Refused.into()),
        }
    }
}
