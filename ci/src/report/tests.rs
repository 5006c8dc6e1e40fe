use super::*;
use crate::clauses::CLAUSES;

fn about(profile: Profile) -> About {
    About {
        commit: "abc".to_owned(),
        changed: false,
        profile,
        only: None,
        began: "2026-01-01T00:00:00Z".to_owned(),
        versions: BTreeMap::new(),
    }
}

fn ran(name: &str, layers: &[Layer], outcome: Outcome) -> Ran {
    Ran {
        name: name.to_owned(),
        layers: layers.to_vec(),
        outcome,
        seconds: 1.0,
        command: "true".to_owned(),
        notes: Vec::new(),
    }
}

/// All that is needed, and nothing else.
fn complete(profile: Profile, shard: (u64, u64)) -> Report {
    let required = Required::committed().unwrap();
    let mut report = Report::new(about(profile), shard);
    let mut results = Results::default();
    for (clause, _) in CLAUSES {
        for layer in Layer::ALL
            .into_iter()
            .filter(|it| required.reason(clause, *it).is_some())
        {
            results.evidence.push(Evidence {
                layer,
                clause: clause.to_owned(),
                amount: 1,
                unit: "tests".to_owned(),
                failures: Vec::new(),
            });
        }
    }
    report.add(ran("tests", &Layer::ALL, Outcome::Passed), results);
    report
}

fn judged(report: &Report) -> Judgement {
    report.judgement(&Required::committed().unwrap())
}

fn failure() -> Failure {
    Failure::new("it <broke>", "ci/test it")
}

#[test]
fn gate_is_green_only_when_all_that_is_needed_was_run_and_passed() {
    assert_eq!(judged(&complete(Profile::Change, (1, 1))), Judgement::Green);
    assert_eq!(
        judged(&complete(Profile::Quick, (1, 1))),
        Judgement::Incomplete
    );
    assert_eq!(
        judged(&complete(Profile::Change, (1, 2))),
        Judgement::Incomplete
    );
    let mut only = complete(Profile::Change, (1, 1));
    only.about.only = Some(Layer::Models);
    assert_eq!(judged(&only), Judgement::Incomplete);
    let mut missing = complete(Profile::Change, (1, 1));
    missing.evidence.pop();
    assert_eq!(judged(&missing), Judgement::Red);
    let mut failed = complete(Profile::Change, (1, 1));
    failed.failures.push(failure());
    assert_eq!(judged(&failed), Judgement::Red);
    // A step without evidence of its own, of a layer that is needed, that could not be run.
    let mut not_run = complete(Profile::Change, (1, 1));
    not_run.evidence.retain(|it| it.layer != Layer::Models);
    not_run.add(
        ran("models", &[Layer::Models], Outcome::NotRun),
        Results::default(),
    );
    assert_eq!(judged(&not_run), Judgement::Incomplete);
}

#[test]
fn gate_parts_are_merged_if_they_are_parts_of_one_whole() {
    let merged = |parts: Vec<Report>| Report::merge(parts);
    let (one, two) = (
        complete(Profile::Change, (1, 2)),
        complete(Profile::Change, (2, 2)),
    );
    let whole = merged(vec![one.clone(), two.clone()]).unwrap();
    assert_eq!(judged(&whole), Judgement::Green);
    assert_eq!((whole.steps.len(), whole.steps[0].seconds), (1, 2.0));
    let mut bad = two.clone();
    bad.failures.push(failure());
    bad.steps[0].outcome = Outcome::Failed;
    let whole = merged(vec![one.clone(), bad]).unwrap();
    assert_eq!(judged(&whole), Judgement::Red);
    assert_eq!(whole.steps[0].outcome, Outcome::Failed);
    let error = merged(vec![one.clone(), one.clone()])
        .unwrap_err()
        .to_string();
    assert!(error.contains("twice"), "{error}");
    let mut other = two;
    other.about.commit = "def".to_owned();
    assert!(merged(vec![one, other]).is_err());
    assert!(merged(Vec::new()).is_err());
}

#[test]
fn gate_text_ends_with_the_line_that_shows_the_first_failure_again() {
    let required = Required::committed().unwrap();
    let mut report = complete(Profile::Change, (1, 1));
    assert!(
        report
            .text(&required)
            .ends_with("GREEN: every clause has the evidence that it needs (change in 1 s)\n")
    );
    report.failures.push(failure());
    let text = report.text(&required);
    assert!(
        text.ends_with(
            "RED (change in 1 s)\nfailed: it <broke>\nreproduce the first failure: ci/test it\n"
        ),
        "{text}"
    );
    report.failures.clear();
    report
        .evidence
        .retain(|it| !(it.layer == Layer::Models && it.clause == "S4"));
    let text = report.text(&required);
    assert!(
        text.contains("missing: S4 has no evidence from models (in every state)"),
        "{text}"
    );
}

#[test]
fn gate_page_has_every_clause_and_nothing_from_outside() {
    let required = Required::committed().unwrap();
    let mut report = complete(Profile::Change, (1, 1));
    report.failures.push(failure());
    let page = report.html(&required);
    for (clause, meaning) in CLAUSES {
        let meaning = meaning
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        assert!(
            page.contains(&format!("<strong>{clause}</strong> {meaning}")),
            "{clause}"
        );
    }
    assert!(
        page.contains("it &lt;broke&gt;") && page.contains("ci/test it"),
        "{page}"
    );
    assert!(page.contains("PgBouncer"), "the limits");
    assert!(page.contains("ack-before-work"), "the planted bugs");
    for outside in ["src=", "href=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn gate_annotations_are_one_line_each() {
    let mut report = complete(Profile::Change, (1, 1));
    report
        .failures
        .push(Failure::new("50 %\nof it", "ci/test it"));
    assert_eq!(
        report.annotations(),
        "::error title=gate::50 %25%0Aof it%0Areproduce: ci/test it\n"
    );
}
