// Package scenario tests the engine and its replicas together with readable scripts: each file under testdata is a
// list of commands and what they print. Everything is immediate and in order here, unless a script holds it back or
// makes it fail; the simulator is where time, loss and crashes live.
package scenario
