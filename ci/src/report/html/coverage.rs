//! What happened in the simulation: kinds of faults by steps of the gate.

use maud::{Markup, html};

use crate::amount::short;
use crate::results::Coverage;

pub(super) fn section(coverage: &Coverage) -> Markup {
    html! {
        p {
            "How often each kind of fault was there, and how often the gate took each of its steps while that fault was in effect. What never \
            happened was not shown by the simulation."
        }
        div.wide {
            table.matrix {
                thead { tr {
                    th scope="col" { "Fault" } th scope="col" { "times" }
                    @for step in &coverage.gate { th scope="col" { (step) } }
                } }
                tbody {
                    @for fault in &coverage.faults {
                        tr {
                            th scope="row" { (fault.kind) }
                            (count(fault.times))
                            @for times in &fault.steps { (count(*times)) }
                        }
                    }
                }
            }
        }
        p {
            @for (n, it) in coverage.steps.iter().enumerate() {
                @if n > 0 { ", " }
                @if it.times == 0 { span.not-run { (it.step) " never" } } @else { (it.step) " " (short(it.times)) }
            }
        }
    }
}

fn count(times: u64) -> Markup {
    html! {
        @if times == 0 { td class="not-run" { "never" } } @else { td { (short(times)) } }
    }
}
