//! The models as a specification in Markdown: committed under `models/spec/`, and printed from here, so that it cannot say
//! anything else than the models do.

use std::fmt::Write as _;

use crate::book::{BOOK, Chapter};
use crate::ttl;

/// All pages: file name and text.
///
/// # Errors
/// When a wrong design has no counterexample.
pub fn pages() -> anyhow::Result<Vec<(String, String)>> {
    let mut pages = vec![("README.md".to_owned(), index())];
    for chapter in BOOK {
        pages.push((format!("{}.md", chapter.name), page(&chapter)?));
    }
    Ok(pages)
}

fn index() -> String {
    let mut text = String::from(
        "# What is promised\n\n\
         Each page is one model: a small world in which everything that can happen does. All states of it were visited, so what\n\
         is promised there holds without exception at that size; each page says why that size is enough. Each page also says\n\
         what breaks when a part of the design is left out, with the shortest story of how.\n\n\
         These pages are printed by `cargo model spec --write models/spec`; a test compares them with the models.\n\n\
         | model | about | states | wrong designs |\n|---|---|---|---|\n",
    );
    for chapter in BOOK {
        let _ = writeln!(
            text,
            "| [{}]({}.md) | {} | {} | {} |",
            chapter.name,
            chapter.name,
            chapter.title,
            chapter.states,
            chapter.wrong.len()
        );
    }
    text.push_str("\n## Every promise\n\n| clause | promise | model | code |\n|---|---|---|---|\n");
    for chapter in BOOK {
        for promise in chapter.promises {
            let _ = writeln!(
                text,
                "| {} | {}: {} | [{}]({}.md) | {} |",
                promise.clauses,
                promise.property,
                promise.says,
                chapter.name,
                chapter.name,
                promise.code
            );
        }
    }
    text
}

/// One model's page.
///
/// # Errors
/// When a wrong design has no counterexample.
pub fn page(chapter: &Chapter) -> anyhow::Result<String> {
    let mut text = format!(
        "# {}: {}\n\n{}\n",
        chapter.name, chapter.title, chapter.about
    );
    text.push_str("\n## Promises\n\n| promise | meaning | clauses | code |\n|---|---|---|---|\n");
    for promise in chapter.promises {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            promise.property, promise.says, promise.clauses, promise.code
        );
    }
    text.push_str("\n## Assumptions\n\n");
    for assumption in chapter.assumes {
        let _ = writeln!(text, "* {assumption}");
    }
    text.push_str("\n## What happens\n\n| who | what |\n|---|---|\n");
    for (who, what) in chapter.steps {
        let _ = writeln!(text, "| {who} | {what} |");
    }
    let _ = write!(text, "\n```mermaid\n{}```\n", chapter.diagram);
    let _ = write!(
        text,
        "\n## Size\n\nAll {} states were visited. `cargo model check {}` does it again.\n\n| of what | how many | why that is enough |\n|---|---|---|\n",
        chapter.states, chapter.name
    );
    for scope in chapter.scopes {
        let _ = writeln!(text, "| {} | {} | {} |", scope.what, scope.size, scope.why);
    }
    if chapter.name == "ttl" {
        text.push_str(&smallest());
    }
    text.push_str("\n## Wrong designs\n");
    for wrong in chapter.wrong {
        let story = chapter.counterexample(wrong.name)?;
        let _ = write!(
            text,
            "\n### {}\n\n{}\n\n```text\n{story}```\n",
            wrong.name, wrong.what
        );
    }
    Ok(text)
}

/// The answer to the question how long is long enough, found by trying.
fn smallest() -> String {
    let mut text = String::from(
        "\n## The smallest TTL that is safe (Q1)\n\n\
         Found by trying every TTL from 0 on, in ticks, for every retry window W, broker retention R and resend horizon H from\n\
         0 to 3. With a sweep that looks at the clock alone (and not at fences younger than W):\n\n\
         | W | R | H | smallest safe TTL |\n|---|---|---|---|\n",
    );
    for (w, r, h) in [
        (0, 1, 1),
        (0, 2, 3),
        (1, 2, 3),
        (2, 1, 1),
        (2, 3, 3),
        (3, 1, 1),
        (3, 3, 1),
        (3, 3, 3),
    ] {
        let ttl = match ttl::smallest_safe_ttl(w, r, h) {
            Some(0) => "any: no copy outlives W".to_owned(),
            Some(ttl) => format!("{ttl} = R + H + 1"),
            None => "none".to_owned(),
        };
        let _ = writeln!(text, "| {w} | {r} | {h} | {ttl} |");
    }
    text.push_str(
        "\nIn all 64 of them: **a fence must live longer than R + H**, or W must be at least R + H. The retry window does not\n\
         add to it: every run of a copy asks the fence, and a copy is gone after R, whatever run it is in.\n\n\
         With the sweep as it is built, which never passes the oldest message that is queued, and a broker that keeps messages\n\
         without end: **longer than H**, however long consumers are away. Retention and outages do not matter any more.\n\n\
         The rule at start-up, TTL > W + R + H + margin, is stronger than both. It stays: the sum is what it costs to be wrong\n\
         about one term, and the margin covers clocks that differ.\n",
    );
    text
}
