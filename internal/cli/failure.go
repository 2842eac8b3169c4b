package cli

import (
	"errors"
	"strings"

	"samovar/internal/fault"
)

// Exit codes; docs/errors.md promises them.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitUnavailable = 4
)

// ExitCode is the one table from kinds to exit codes.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	switch fault.KindOf(err) {
	case fault.Invalid:
		return exitUsage
	case fault.NotFound:
		return exitNotFound
	case fault.Unavailable, fault.Aborted, fault.Shutdown:
		return exitUnavailable
	}
	return exitFailure
}

// hinted is an error with the way out, for commands that know it better than the cluster.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

// hints are the ways out for kinds of errors.
type hints map[fault.Kind]string

// advise adds the way out for err's kind, if there is one.
func advise(err error, h hints) error {
	if hint, ok := h[fault.KindOf(err)]; ok && err != nil {
		return hinted{err, hint}
	}
	return err
}

// Message is the line that is printed for an error: what happened, to which object, and the way out.
func Message(err error) string {
	text := printable(err.Error())
	var h hinted
	hint := ""
	if errors.As(err, &h) {
		hint = h.hint
	} else {
		hint = generalHint(fault.KindOf(err), text)
	}
	// The cluster may have told the way out itself, as a command.
	if hint != "" && !strings.Contains(text, "samovar ") {
		text += " (" + hint + ")"
	}
	return "samovar: " + text
}

func generalHint(kind fault.Kind, text string) string {
	switch {
	case strings.Contains(text, "did not answer"), strings.Contains(text, "no node answered"):
		return "is the daemon running there? name other nodes with --endpoint or SAMOVAR_ENDPOINT"
	case kind == fault.Unavailable:
		return "see: samovar status"
	}
	return ""
}

// printable makes one line of a text, and takes out what could play with a terminal: parts of it come from
// outside.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069':
			return '?'
		}
		return r
	}, text)
}
