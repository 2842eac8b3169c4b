// Package fault is the closed list of error kinds of the data path, and the error value that carries one.
//
// Every layer may import it; it imports nothing of the project. It must not know transports: the tables that
// map kinds to errno values and NBD errors live with the drivers and exports that need them. Formatting is
// done without fmt, so that the pure packages that use it reach neither os nor sync.
package fault

import "errors"

// Kind is what went wrong, for code that must decide what to do next.
type Kind uint8

// The kinds. Numbers go on the wire and are never reused.
const (
	None        Kind = 0
	Invalid     Kind = 1  // a request that can never succeed: bounds, alignment, name, size
	IO          Kind = 2  // a medium or file system failed
	NoSpace     Kind = 3  // a replica could not reserve space; every copy is unchanged
	Fenced      Kind = 4  // a newer engine owns the volume
	Busy        Kind = 5  // somebody else holds it; the message names the holder
	Unavailable Kind = 6  // not reachable now; the same request may succeed later
	Corrupt     Kind = 7  // stored or received bytes fail their checksum or their form
	Foreign     Kind = 8  // belongs to another cluster, pool or volume
	Newer       Kind = 9  // written by a newer version
	NotFound    Kind = 10 // no such object
	Exists      Kind = 11 // the name is taken
	Stale       Kind = 12 // the state is behind or ahead of the record: recovery by an operator
	Aborted     Kind = 13 // given up by us before it took effect or with unknown effect
	Shutdown    Kind = 14 // the server ends
	Permission  Kind = 15 // read-only, or not allowed
	Internal    Kind = 16 // a rule of ours was broken: a bug
)

var names = [...]string{
	None: "ok", Invalid: "invalid", IO: "i/o error", NoSpace: "no space", Fenced: "fenced", Busy: "busy",
	Unavailable: "unavailable", Corrupt: "corrupt", Foreign: "foreign", Newer: "newer version",
	NotFound: "not found", Exists: "exists", Stale: "stale", Aborted: "aborted", Shutdown: "shutting down",
	Permission: "not permitted", Internal: "internal error",
}

// String names the kind in words.
func (k Kind) String() string {
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown kind"
}

// Error is an operation that failed: what was tried (Op, with the object's name), why (Kind, Text), and the
// cause underneath, if any.
type Error struct {
	Kind Kind
	Op   string // "open pool ssd1": the operation and its object
	Text string // what happened and the way out, for a person
	Err  error  // the cause, or nil
}

// New makes an error of a kind.
func New(kind Kind, op, text string) *Error { return &Error{Kind: kind, Op: op, Text: text} }

// Wrap puts an operation and a kind around a cause.
func Wrap(kind Kind, op string, err error) *Error { return &Error{Kind: kind, Op: op, Err: err} }

// Error prints operation, words and cause, joined by colons.
func (e *Error) Error() string {
	s := e.Op
	for _, part := range []string{e.Text} {
		if part != "" {
			s = join(s, part)
		}
	}
	if e.Err != nil {
		s = join(s, e.Err.Error())
	} else if e.Text == "" {
		s = join(s, e.Kind.String())
	}
	return s
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ": " + b
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf finds the outermost kind in a chain of errors: None for nil, Internal for an error without one.
func KindOf(err error) Kind {
	if err == nil {
		return None
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// Is tells whether err carries kind.
func Is(err error, kind Kind) bool { return KindOf(err) == kind }
