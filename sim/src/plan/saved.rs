//! A plan in a file, with what it is for and what came out when it was saved.

use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::Plan;

/// What came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The commit that it was run with.
    pub commit: String,
    /// The digest of its history.
    pub digest: String,
    /// Violated invariants by name, none when all hold.
    pub violated: Vec<String>,
}

/// A plan file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    /// What it shows, in a line.
    #[serde(default)]
    pub about: String,
    /// What came out when it was saved; left out in a plan that was edited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
    /// What happens.
    pub plan: Plan,
}

impl Saved {
    /// Reads a plan file.
    ///
    /// # Errors
    /// When it cannot be read, or is no plan that can be run.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Reads the text of a plan file.
    ///
    /// # Errors
    /// When it is no plan, the error names the line; or none that can be run, the error names the field.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let saved: Self = serde_json::from_str(text).context("this is no plan")?;
        let plan = &saved.plan;
        plan.check().context("this is no plan that can be run")?;
        Ok(saved)
    }

    /// Writes it so that people can read and edit it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, self.text()?).with_context(|| path.display().to_string())
    }

    /// The text of a plan file: a job or a fault a line.
    ///
    /// # Errors
    /// Never: everything in it can be written.
    pub fn text(&self) -> anyhow::Result<String> {
        let list = |items: Vec<String>| match items.is_empty() {
            true => "[]".to_owned(),
            false => format!("[\n      {}\n    ]", items.join(",\n      ")),
        };
        let line = |value: serde_json::Result<String>| value.map(|text| spaced(&text));
        let jobs: Vec<String> = (self.plan.jobs.iter())
            .map(|job| line(serde_json::to_string(job)))
            .collect::<Result<_, _>>()?;
        let faults: Vec<String> = (self.plan.faults.iter())
            .map(|fault| line(serde_json::to_string(fault)))
            .collect::<Result<_, _>>()?;
        let knobs = serde_json::to_string_pretty(&self.plan.knobs)?.replace('\n', "\n    ");
        let expected = match &self.expected {
            Some(expected) => format!(
                "  \"expected\": {},\n",
                line(serde_json::to_string(expected))?
            ),
            None => String::new(),
        };
        Ok(format!(
            "{{\n  \"about\": {},\n{expected}  \"plan\": {{\n    \"seed\": {},\n    \"knobs\": {knobs},\n    \"jobs\": {},\n    \
             \"faults\": {}\n  }}\n}}\n",
            serde_json::to_string(&self.about)?,
            self.plan.seed,
            list(jobs),
            list(faults),
        ))
    }
}

/// A space behind every comma and colon outside of strings.
fn spaced(json: &str) -> String {
    let (mut text, mut quoted, mut escaped) = (String::new(), false, false);
    for c in json.chars() {
        text.push(c);
        match c {
            '"' if !escaped => quoted = !quoted,
            ',' | ':' if !quoted => text.push(' '),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_its_file() -> anyhow::Result<()> {
        for seed in 0..50 {
            let saved = Saved {
                about: "a \"quoted\": line, with\\ things".to_owned(),
                expected: (seed % 2 == 0).then(|| Expected {
                    commit: "abc".to_owned(),
                    digest: "0".to_owned(),
                    violated: vec!["S1 one effect".to_owned()],
                }),
                plan: Plan::draw(seed, 5),
            };
            let text = saved.text()?;
            assert_eq!(serde_json::from_str::<Saved>(&text)?, saved, "{text}");
        }
        Ok(())
    }
}
