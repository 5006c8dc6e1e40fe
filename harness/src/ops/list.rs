//! The list's parameters, and how a dead letter is shown.

use std::str::FromStr;

use base64::Engine as _;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::cursor;
use super::problem::Problem;
use crate::dead_letter::{DeadLetter, DeadLetterId, Reason, Status};
use crate::ids::{CorrelationId, JobId, TenantId};
use crate::names::{ConsumerName, QueueName};
use crate::review::{LetterCount, LetterFilter, LetterOrder, LetterPlace, LetterQuery};

const LIMIT_DEFAULT: u32 = 50;
const LIMIT_MAX: u32 = 200;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) query: LetterQuery,
    /// The bytes of each payload, too.
    pub(super) body: bool,
    /// How many there are of each kind, too.
    pub(super) counts: bool,
}

/// In which order.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code)]
enum Order {
    Newest,
    Oldest,
}

/// What is shown, too.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code)]
enum Include {
    Body,
    Counts,
}

/// The parameters as they are described; errors name them from here, and a test holds [`Wanted::parse`] against them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)]
pub(super) struct Parameters {
    /// Where it is in its life.
    #[param(inline)]
    status: Option<Status>,
    /// The queue that its job came from.
    #[param(pattern = "^[a-z][a-z0-9_]{0,46}$", example = "points")]
    queue: Option<String>,
    /// The consumer that failed on it.
    #[param(pattern = "^[a-z][a-z0-9_]{0,62}$", example = "awards")]
    consumer: Option<String>,
    /// Whose job it is. Neither the nil nor the max UUID.
    tenant_id: Option<Uuid>,
    /// Why the job was given up.
    #[param(inline)]
    reason: Option<Reason>,
    /// The job. Neither the nil nor the max UUID.
    job_id: Option<Uuid>,
    /// The chain of events that it belongs to.
    #[param(
        pattern = "^[!-~]{1,128}$",
        example = "4bf92f3577b34da6a3ce929d0e0e4736"
    )]
    correlation_id: Option<String>,
    /// The kind of failure, by which incidents are grouped: queue, consumer, reason and error class.
    #[param(
        pattern = "^[^\\u0000]{1,1024}$",
        example = "points/awards/exhausted/timeout"
    )]
    fingerprint: Option<String>,
    /// Written at this time or later.
    #[param(example = "2026-01-31T12:00:00Z")]
    created_from: Option<DateTime<Utc>>,
    /// Written before this time.
    #[param(example = "2026-02-01T00:00:00Z")]
    created_before: Option<DateTime<Utc>>,
    /// The last error says this somewhere, in upper or lower case. Three letters or digits in a row at least.
    #[param(
        pattern = "^[^\\u0000]*[\\p{L}\\p{N}]{3}[^\\u0000]*$",
        max_length = 1024,
        example = "timeout"
    )]
    error_contains: Option<String>,
    /// By the time of writing; newest first if it is left out.
    #[param(inline)]
    order: Option<Order>,
    /// How many at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before, with the same filters and order.
    #[param(pattern = "^[A-Za-z0-9_-]{44}$")]
    cursor: Option<String>,
    /// The bytes of each payload as base64; how many letters of each kind fit, the most frequent first.
    #[param(inline, style = Form, explode = false, min_items = 1, example = json!(["body", "counts"]))]
    include: Option<Vec<Include>>,
}

fn parameter_names() -> Vec<String> {
    let all = Parameters::into_params(|| None).into_iter();
    all.map(|parameter| parameter.name).collect()
}

impl Wanted {
    /// Reads the query part of the address.
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let mut filter = LetterFilter::default();
        let (mut order, mut limit, mut after) = (LetterOrder::NewestFirst, LIMIT_DEFAULT, None);
        let (mut body, mut counts) = (false, false);
        let mut seen: Vec<String> = Vec::new();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            let (name, value) = (name.as_ref(), value.as_ref());
            if seen.iter().any(|it| it == name) {
                return Err(Problem::invalid(name, "give it once"));
            }
            seen.push(name.to_owned());
            match name {
                "status" => filter.status = Some(read::<Status>(name, value)?),
                "reason" => filter.reason = Some(read::<Reason>(name, value)?),
                "queue" => filter.queue = Some(made(name, QueueName::new(value))?),
                "consumer" => filter.consumer = Some(made(name, ConsumerName::new(value))?),
                "tenant_id" => {
                    filter.tenant_id = Some(made(name, TenantId::new(read(name, value)?))?);
                }
                "job_id" => filter.job_id = Some(made(name, JobId::new(read(name, value)?))?),
                "correlation_id" => {
                    filter.correlation_id = Some(made(name, CorrelationId::new(value))?);
                }
                "fingerprint" => filter.fingerprint = Some(text_of(name, value)?),
                "created_from" => filter.created_from = Some(time(name, value)?),
                "created_before" => filter.created_before = Some(time(name, value)?),
                "error_contains" => filter.error_contains = Some(searchable(name, value)?),
                "order" => {
                    order = match value {
                        "newest" => LetterOrder::NewestFirst,
                        "oldest" => LetterOrder::OldestFirst,
                        _ => return Err(Problem::invalid(name, "must be newest or oldest")),
                    };
                }
                "limit" => {
                    let least = read::<u32>(name, value)?;
                    if !(1..=LIMIT_MAX).contains(&least) {
                        let detail = format!(
                            "must be 1 to {LIMIT_MAX}; ask for the next page with the cursor"
                        );
                        return Err(Problem::invalid(name, &detail));
                    }
                    limit = least;
                }
                "cursor" => after = Some(value.to_owned()),
                "include" => {
                    for part in value.split(',') {
                        match part {
                            "body" => body = true,
                            "counts" => counts = true,
                            _ => {
                                return Err(Problem::invalid(
                                    name,
                                    "must be body, counts, or both with a comma",
                                ));
                            }
                        }
                    }
                }
                _ => {
                    let there_are = parameter_names().join(", ");
                    let detail = format!("there is no such parameter; there are {there_are}");
                    return Err(Problem::invalid(name, &detail));
                }
            }
        }
        let mut query = LetterQuery {
            filter,
            order,
            after: None,
            limit,
        };
        if let Some(text) = after {
            let place = cursor::decode(&query, &text);
            let detail = "is no cursor of this list; leave it out to begin again, and keep the other parameters while you go on";
            query.after = Some(place.ok_or_else(|| Problem::invalid("cursor", detail))?);
        }
        Ok(Self {
            query,
            body,
            counts,
        })
    }
}

fn read<T: FromStr<Err: std::fmt::Display>>(name: &str, value: &str) -> Result<T, Problem> {
    made(name, value.parse::<T>())
}

fn made<T, E: std::fmt::Display>(name: &str, outcome: Result<T, E>) -> Result<T, Problem> {
    outcome.map_err(|error| Problem::invalid(name, &error.to_string()))
}

fn text_of(name: &str, value: &str) -> Result<String, Problem> {
    // PostgreSQL has no text with NUL in it.
    if value.is_empty() || value.contains('\0') || value.chars().count() > 1_024 {
        return Err(Problem::invalid(
            name,
            "must have 1 to 1024 characters, none of them NUL",
        ));
    }
    Ok(value.to_owned())
}

/// The index knows groups of three letters or digits.
fn searchable(name: &str, value: &str) -> Result<String, Problem> {
    let text = text_of(name, value)?;
    let words = text.split(|c: char| !c.is_alphanumeric());
    if words.map(|word| word.chars().count()).max().unwrap_or(0) < 3 {
        return Err(Problem::invalid(
            name,
            "must have three letters or digits in a row",
        ));
    }
    Ok(text)
}

fn time(name: &str, value: &str) -> Result<DateTime<Utc>, Problem> {
    let read = DateTime::parse_from_rfc3339(value);
    let at =
        read.map_err(|_| Problem::invalid(name, "must be a time such as 2026-01-31T12:00:00Z"))?;
    // What the database can hold, with room to spare.
    let years = chrono::Datelike::year(&at.to_utc());
    if !(1..=9_999).contains(&years) {
        return Err(Problem::invalid(name, "must be in the years 1 to 9999"));
    }
    Ok(at.to_utc())
}

/// A dead letter as it is shown.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeadLetter)]
pub(super) struct Shown {
    #[schema(value_type = Uuid)]
    id: DeadLetterId,
    #[schema(value_type = Uuid)]
    job_id: String,
    queue: String,
    consumer: String,
    #[schema(value_type = Option<Uuid>, required)]
    tenant_id: Option<String>,
    correlation_id: String,
    /// How often the job was replayed before.
    generation: u32,
    status: Status,
    reason: Reason,
    error_class: String,
    fingerprint: String,
    /// Runs that were started.
    attempts: u32,
    last_error: String,
    /// For people; what a replay publishes is the body.
    #[schema(value_type = serde_json::Value)]
    payload: Box<RawValue>,
    #[schema(value_type = Object)]
    headers: Box<RawValue>,
    created_at: DateTime<Utc>,
    #[schema(required)]
    reviewed_at: Option<DateTime<Utc>>,
    #[schema(required)]
    reviewed_by: Option<String>,
    #[schema(required)]
    discard_reason: Option<String>,
    /// With `include=body`: the payload's bytes as received.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(content_encoding = "base64")]
    body_base64: Option<String>,
}

/// JSON as the database holds it.
fn raw(json: String) -> Box<RawValue> {
    RawValue::from_string(json).unwrap_or_default()
}

impl Shown {
    fn of(it: DeadLetter, with_body: bool) -> Self {
        let letter = it.letter;
        let standard = base64::engine::general_purpose::STANDARD;
        Self {
            id: letter.id,
            fingerprint: letter.fingerprint(),
            job_id: letter.job_id.to_string(),
            queue: letter.queue.to_string(),
            consumer: letter.consumer.to_string(),
            tenant_id: letter.tenant_id.map(|tenant| tenant.to_string()),
            correlation_id: letter.correlation_id.to_string(),
            generation: letter.generation,
            status: it.status,
            reason: letter.reason,
            error_class: letter.error_class.to_string(),
            attempts: letter.attempts,
            last_error: letter.last_error,
            payload: raw(letter.payload),
            headers: raw(letter.headers),
            created_at: it.created_at,
            reviewed_at: it.reviewed_at,
            reviewed_by: it.reviewed_by,
            discard_reason: it.discard_reason,
            body_base64: with_body.then(|| standard.encode(letter.body)),
        }
    }
}

/// A dead letter as JSON, just as the API shows it; with the bytes of its payload as base64, if `with_body`.
pub fn letter_json(letter: DeadLetter, with_body: bool) -> String {
    let shown = Shown::of(letter, with_body);
    serde_json::to_string(&shown).unwrap_or_default()
}

/// How many there are of one kind.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Count)]
struct ShownCount {
    fingerprint: String,
    letters: u64,
    first_at: DateTime<Utc>,
    last_at: DateTime<Utc>,
}

/// A page.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Page {
    items: Vec<Shown>,
    /// What to ask for the next page with; null on the last.
    #[schema(required)]
    next_cursor: Option<String>,
    /// With `include=counts`: how many letters of each kind fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<Vec<ShownCount>>,
}

impl Page {
    /// From one letter more than was asked for, if there is one.
    pub(super) fn of(
        wanted: &Wanted,
        mut letters: Vec<DeadLetter>,
        counts: Option<Vec<LetterCount>>,
    ) -> Self {
        let limit = usize::try_from(wanted.query.limit).unwrap_or(usize::MAX);
        let more = letters.len() > limit;
        letters.truncate(limit);
        let last = letters.last().filter(|_| more);
        let next_cursor = last.map(|last| cursor::encode(&wanted.query, LetterPlace::of(last)));
        let counts = counts.map(|counts| {
            let shown = |it: LetterCount| ShownCount {
                fingerprint: it.fingerprint,
                letters: it.letters,
                first_at: it.first_at,
                last_at: it.last_at,
            };
            counts.into_iter().map(shown).collect()
        });
        Self {
            items: letters
                .into_iter()
                .map(|letter| Shown::of(letter, wanted.body))
                .collect(),
            next_cursor,
            counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b6_what_is_described_is_read_and_nothing_else() {
        let names = parameter_names();
        assert_eq!(names.len(), 15);
        for name in &names {
            // Wrong for each of them, so that the answer is about the value.
            let problem = Wanted::parse(&format!("{name}=%00")).unwrap_err();
            let text = serde_json::to_string(&problem).unwrap();
            assert!(!text.contains("no such parameter"), "{text}");
        }
        let problem = Wanted::parse("page=2").unwrap_err();
        let text = serde_json::to_string(&problem).unwrap();
        assert!(text.contains(&names.join(", ")), "{text}");
    }
}
