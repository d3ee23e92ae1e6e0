//! The default name of a field manager.

use crate::value::is_print;

/// The maximum length of the name of a manager, in bytes.
const MAX_LENGTH: usize = 128;

/// Returns the name that a user agent stands for: its printable characters before the first slash, up to the limit.
pub fn manager_of_user_agent(user_agent: &str) -> String {
    let program = user_agent.split('/').next().unwrap_or_default();
    let mut name = String::new();
    for char in program.chars().filter(|char| is_print(*char)) {
        if name.len() + char.len_utf8() > MAX_LENGTH {
            break;
        }
        name.push(char);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_that_of_the_program() {
        for (agent, name) in [
            ("kubectl/v1.35.0 (linux/amd64) kubernetes/abc", "kubectl"),
            ("curl", "curl"),
            ("", ""),
            ("a\u{7}b\n/1", "ab"),
            ("/x", ""),
        ] {
            assert_eq!(manager_of_user_agent(agent), name, "{agent:?}");
        }
        assert_eq!(manager_of_user_agent(&"é".repeat(100)).len(), 128);
    }
}
