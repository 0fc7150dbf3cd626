use super::*;

/// The problems of a text that must not be accepted, each as `line:column: key: message`.
fn refused(text: &str) -> Vec<String> {
    match parse(text) {
        Ok(_) => panic!("accepted: {}", &text[..text.len().min(200)]),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn an_empty_file_says_what_it_needs() {
    for text in ["", "\n\n", "# only a comment\n", "---\n", "~", "null\n"] {
        let problems = refused(text);
        assert!(problems[0].starts_with("1:1: ") && problems[0].contains("`clusters`"), "{text:?}: {problems:?}");
    }
}

#[test]
fn the_top_must_be_a_map() {
    assert!(refused("- a\n- b\n")[0].contains("found a list"));
    assert!(refused("\n  just text\n")[0].starts_with("2:3: "));
    assert!(refused("42")[0].contains("found a whole number"));
}

#[test]
fn a_second_document_is_refused_where_it_starts() {
    assert_eq!(refused("a: 1\n---\nb: 2\n"), ["3:1: a second document starts here; a config is one document"]);
}

#[test]
fn syntax_errors_have_a_place_once() {
    let problems = refused("a: 1\nb: [1, 2\nc: 3\n");
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with("3:"), "{problems:?}");
    assert!(refused("a: *nowhere\n")[0].contains("unknown anchor"));
    assert!(refused("a: \u{1}\n")[0].starts_with("1:"));
}

#[test]
fn repeated_keys_are_refused_at_the_second_one() {
    let problems = refused("a: {x: 1}\nb:\n  c: 1\n  d: 2\n  c: 3\na: 2\n");
    assert_eq!(
        problems,
        [
            "5:3: b.c: this key is already given at line 3; keep one of them",
            "6:1: a: this key is already given at line 1; keep one of them"
        ]
    );
}

#[test]
fn the_same_number_written_twice_is_a_repeated_key() {
    assert!(refused("racks: {1: a, \"1\": b}\n")[0].starts_with("1:15: racks.1: "));
}

#[test]
fn tags_merge_keys_and_odd_keys_are_refused_by_name() {
    assert!(refused("a: !env B\n")[0].contains("tags"));
    assert!(refused("a: &x {b: 1}\nc: {<<: *x}\n")[0].contains("merge keys"));
    assert!(refused("? [a, b]\n: 1\n")[0].contains("a key must be"));
    assert!(refused("${NAME}: 1\n")[0].contains("keys are not interpolated"));
}

#[test]
fn aliases_may_repeat_values_but_not_explode() {
    assert!(parse("a: &x [1, 2]\nb: *x\n").is_ok());
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for i in 1..12 {
        let refs = vec![format!("*a{}", i - 1); 10].join(",");
        bomb.push_str(&format!("a{i}: &a{i} [{refs}]\n"));
    }
    assert!(refused(&bomb)[0].contains("aliases"));
    // Few values, but each of them large.
    let large = format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(500_000), vec!["*a"; 1000].join(","));
    assert!(refused(&large)[0].contains("aliases"));
}

#[test]
fn an_alias_to_itself_ends() {
    assert!(refused("a: &a [*a]\n")[0].contains("limit"));
}

#[test]
fn size_and_depth_are_bounded() {
    assert!(refused(&"a".repeat(MAX_TEXT + 1))[0].contains("1 MiB"));
    assert!(refused(&"[".repeat(MAX_TEXT))[0].starts_with("1:129: "));
    assert!(refused(&"{a: ".repeat(1000))[0].contains("brackets"));
    assert!(refused(&format!("a:\n  {}x", "- ".repeat(2000)))[0].contains("recursion limit"));
}

#[test]
fn a_value_is_located_at_its_key_and_an_item_at_itself() {
    let text = "a: 1\nb:\n  ü: {x: [10, 20]}\n  list:\n    - one\n    - {k: v}\n";
    let root = parse(text).unwrap_or_else(|p| panic!("{p:?}"));
    let at = |path: &KeyPath| {
        let Position { line, column } = locate(text, &root, path);
        (line, column)
    };
    let b = KeyPath::root().key("b");
    assert_eq!(at(&KeyPath::root().key("a")), (1, 1));
    assert_eq!(at(&b.key("ü").key("x")), (3, 7));
    assert_eq!(at(&b.key("ü").key("x").item(1)), (3, 15));
    assert_eq!(at(&b.key("list").item(1)), (6, 7));
    assert_eq!(at(&b.key("list").item(1).key("k")), (6, 8));
    // What the text does not have is located at what is around it.
    assert_eq!(at(&b.key("list").item(7)), (4, 3));
    assert_eq!(at(&b.key("missing").key("deeper")), (2, 1));
    assert_eq!(at(&KeyPath::root().key("missing")), (1, 1));
}

#[test]
fn a_removed_key_is_gone_and_a_list_item_takes_its_key_along() {
    let mut root = parse("a: {b: [1, 2], c: 3}\n").unwrap_or_else(|p| panic!("{p:?}"));
    let a = KeyPath::root().key("a");
    assert!(root.remove(&a.key("b").item(1)));
    assert!(root.get(&a.key("b")).is_none());
    assert!(root.get(&a.key("c")).is_some());
    assert!(!root.remove(&a.key("b")));
    assert!(!root.remove(&KeyPath::root()));
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "[\\[\\]{}:,&*!|>'\"%@`#a0 \n\t-]{0,200}") {
        let _ = parse(&text);
    }
}
