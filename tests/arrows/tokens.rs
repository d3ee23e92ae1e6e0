//! Finds paths in tokens, where no grammar says what is a path: the arguments of macros and of attributes.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::ext::IdentExt;

use crate::source::Segments;

/// Returns each path in the tokens, also each name in the braces of a `use`. Paths that begin with `::` name other
/// crates and are left out.
pub(crate) fn paths(tokens: TokenStream) -> Vec<Segments> {
    let mut found = Vec::new();
    find(&tokens.into_iter().collect::<Vec<_>>(), &mut found);
    found
}

/// Returns the paths in the string literals of an attribute's arguments: `serde` is given functions that way.
pub(crate) fn paths_in_strings(tokens: TokenStream) -> Vec<Segments> {
    let mut found = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) => found.extend(paths_in_strings(group.stream())),
            TokenTree::Literal(literal) => found.extend(path_in_string(literal)),
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
    found
}

fn path_in_string(literal: proc_macro2::Literal) -> Option<Segments> {
    let syn::Lit::Str(text) = syn::Lit::new(literal) else {
        return None;
    };
    let path: syn::Path = text.parse().ok()?;
    let segments: Segments = path
        .segments
        .iter()
        .map(|part| part.ident.unraw().to_string())
        .collect();
    (path.leading_colon.is_none() && segments.len() > 1).then_some(segments)
}

fn find(tokens: &[TokenTree], found: &mut Vec<Segments>) {
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => {
                find(&group.stream().into_iter().collect::<Vec<_>>(), found);
                at += 1;
            }
            TokenTree::Ident(_) => {
                let mut paths = Vec::new();
                let end = path(tokens, at, Segments::new(), &mut paths);
                if begins_path(tokens, at) {
                    found.append(&mut paths);
                }
                at = end;
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => at += 1,
        }
    }
}

/// Whether an identifier can be the first of a path in this crate: it is no field, lifetime or fragment of a
/// `macro_rules`, and does not follow `::`.
fn begins_path(tokens: &[TokenTree], at: usize) -> bool {
    let Some(TokenTree::Punct(before)) = at.checked_sub(1).and_then(|at| tokens.get(at)) else {
        return true;
    };
    match before.as_char() {
        '$' => matches!(&tokens[at], TokenTree::Ident(ident) if ident == "crate"),
        '.' => at.checked_sub(2).is_some_and(|at| is_punct(tokens, at, '.')),
        ':' => !at.checked_sub(2).is_some_and(|at| is_punct(tokens, at, ':')),
        '\'' => false,
        _ => true,
    }
}

/// Reads the path that begins at an identifier and returns the index after it.
fn path(tokens: &[TokenTree], mut at: usize, mut so_far: Segments, found: &mut Vec<Segments>) -> usize {
    while let Some(TokenTree::Ident(ident)) = tokens.get(at) {
        so_far.push(ident.unraw().to_string());
        at += 1;
        if !(is_punct(tokens, at, ':') && is_punct(tokens, at + 1, ':')) {
            break;
        }
        match tokens.get(at + 2) {
            Some(TokenTree::Ident(_)) => at += 2,
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let parts: Vec<TokenTree> = group.stream().into_iter().collect();
                for part in
                    parts.split(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ','))
                {
                    path(part, 0, so_far.clone(), found);
                }
                return at + 3;
            }
            _ => break,
        }
    }
    if so_far.last().is_some_and(|last| last == "self") && so_far.len() > 1 {
        so_far.pop();
    }
    found.push(so_far);
    at
}

fn is_punct(tokens: &[TokenTree], at: usize, expected: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let tokens: TokenStream = text.parse().unwrap();
        let paths = paths(tokens).into_iter().filter(|path| path.len() > 1);
        paths.map(|path| path.join("::")).collect()
    }

    #[test]
    fn paths_are_found_among_the_tokens_of_a_macro() {
        for (text, expected) in [
            (
                "f(crate::a::B { c: super::d::E })",
                vec!["crate::a::B", "super::d::E"],
            ),
            ("vec![super::super::a::f(&b)?; 3]", vec!["super::super::a::f"]),
            (
                "$crate::a::B::<$crate::c::D>::new()",
                vec!["crate::a::B", "crate::c::D"],
            ),
            (
                "use crate::{a, b::{self, c as d}, e::*};",
                vec!["crate::a", "crate::b", "crate::b::c", "crate::e"],
            ),
            ("0..a::LAST", vec!["a::LAST"]),
            ("label: a::b", vec!["a::b"]),
            ("r#crate_like::r#type", vec!["crate_like::type"]),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_path_of_this_crate_is_left_out() {
        for text in [
            "\"crate::a\", \"// crate::b\"",
            "::std::mem::take(x)",
            "$name::c::d",
            "x.crate_field.await::<T>()",
            "<T>::a::b()",
            "'a: 'b",
        ] {
            assert_eq!(found(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn strings_of_attributes_name_functions() {
        let tokens: TokenStream = r#"with = "crate::a::b", default, rename = "c::", nested(x = "super::d")"#
            .parse()
            .unwrap();
        let expected: Vec<Segments> = vec![
            vec!["crate".into(), "a".into(), "b".into()],
            vec!["super".into(), "d".into()],
        ];
        assert_eq!(paths_in_strings(tokens), expected);
    }
}
