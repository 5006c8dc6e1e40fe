//! What the layers made of planted bugs.

use maud::{Markup, html};

use crate::evidence::Layer;
use crate::planted::{Bug, Hunted, Noticed, Results, bugs, soon};
use crate::steps::SEEDS_OF_A_CHANGE;

pub(super) fn section() -> Markup {
    match bugs().and_then(|bugs| Ok((bugs, Results::committed()?))) {
        Ok((bugs, results)) => table(&bugs, &results),
        Err(error) => html! { p.red { (format!("{error:#}")) } },
    }
}

fn table(bugs: &[Bug], results: &Results) -> Markup {
    let layers = results.layers(bugs);
    let hunted = results.hunted(bugs);
    let wrong = results.wrong(bugs, true);
    html! {
        p {
            "Each is a realistic mistake that was made on purpose in a copy of the code; a layer that does not turn red would not have noticed \
            that mistake. " (hunted) " of " (bugs.len()) " were hunted, each at the commit of its row, not in this run. A cell says how soon a \
            layer noticed, without building. A layer claims a bug where the cell is green, and must notice it. The models know the design, \
            not the code: their own wrong designs are in " code { "models/spec" } "."
        }
        @if !wrong.is_empty() {
            details { summary.not-run { (wrong.len()) " answers are missing or not as they must be" } ul { @for it in &wrong { li { (it) } } } }
        }
        div.wide {
            table.matrix {
                thead {
                    tr {
                        th scope="col" { "Bug" }
                        @for layer in &layers { th scope="col" { (layer.as_str()) } }
                        th scope="col" { "only by" }
                        th scope="col" title="the greatest chance that all seeds of a change miss it" { "missed by " (SEEDS_OF_A_CHANGE) " seeds" }
                        th scope="col" { "at" }
                    }
                }
                tbody { @for bug in bugs { (row(bug, &layers, results)) } }
            }
        }
    }
}

fn row(bug: &Bug, layers: &[Layer], results: &Results) -> Markup {
    html! {
        tr {
            th scope="row" { strong { (bug.clause) } " " (bug.name) ": " (bug.what) }
            @for layer in layers {
                @let claims = bug.layers.contains(layer);
                @match results.noticed(bug, *layer) {
                    Noticed::NotAsked => td class="empty" {},
                    Noticed::No if claims => td class="red" { "not noticed" },
                    Noticed::No => td class="empty" { "-" },
                    Noticed::Yes(caught) if bug.is_control() => td class="red" title=[caught.by.as_deref()] { "red" },
                    Noticed::Yes(caught) => td class=[claims.then_some("green")] title=[caught.by.as_deref()] { (soon(caught)) },
                }
            }
            td { (results.only(bug).map_or("", Layer::as_str)) }
            td { @if let Noticed::Yes(caught) = results.noticed(bug, Layer::Simulation) {
                @if let Some(seeds) = caught.seeds { (format!("{:.0e}", seeds.missed_by(SEEDS_OF_A_CHANGE))) }
            } }
            td { code { (results.of(bug).map_or("", Hunted::at)) } }
        }
    }
}
