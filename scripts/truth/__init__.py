"""What draftconv says of engines, held against the engines themselves: see `scripts/engine-truth`.

`judges` lists them. `drafts` makes the directories they are asked about, `asking` asks in forked processes,
`replaying`, `controls` and `conversions` compare whole engines with replay, `table` keeps what was found. A
package per engine holds how it is asked, its cases, and how an answer is read.
"""
