// Package architecture holds the tests that keep the shape of the project: which package may know which, what pure
// packages may reach, and the habits that a reader can rely on. There is no code here but tests. docs/architecture.md
// has the same table in words.
//
// Imports are checked in the program, direct and transitive ones. Test files may import what they like: they have to
// put things together that must not know each other.
package architecture
