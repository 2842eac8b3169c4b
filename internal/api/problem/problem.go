// Package problem carries an error over the API: a kind, an operation and words, in JSON, under an HTTP status.
// Server and client share it, so that an error keeps its kind on the way.
//
//	fault.Error --Of--> {"error":{"kind":"busy","op":"attach volume tea","text":"held by node n2"}} + 409
//	fault.Error <-Err-- Detail <--JSON
//
// It must not know routes, requests or commands. The words and statuses of the table are promised to programs
// outside: they are never changed, only added to. docs/errors.md explains each for people.
package problem

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"samovar/internal/fault"
)

// Entry is how one kind looks outside.
type Entry struct {
	Kind   fault.Kind
	Word   string // in JSON
	Status int    // of HTTP
}

// Table lists every kind, in the order of its number. It is the one place that maps kinds to words and statuses.
func Table() []Entry {
	return []Entry{
		{fault.Invalid, "invalid", http.StatusBadRequest},
		{fault.IO, "io", http.StatusInternalServerError},
		{fault.NoSpace, "no-space", http.StatusInsufficientStorage},
		{fault.Fenced, "fenced", http.StatusConflict},
		{fault.Busy, "busy", http.StatusConflict},
		{fault.Unavailable, "unavailable", http.StatusServiceUnavailable},
		{fault.Corrupt, "corrupt", http.StatusInternalServerError},
		{fault.Foreign, "foreign", http.StatusConflict},
		{fault.Newer, "newer", http.StatusNotImplemented},
		{fault.NotFound, "not-found", http.StatusNotFound},
		{fault.Exists, "exists", http.StatusConflict},
		{fault.Stale, "stale", http.StatusConflict},
		{fault.Aborted, "aborted", http.StatusGatewayTimeout},
		{fault.Shutdown, "shutdown", http.StatusServiceUnavailable},
		{fault.Permission, "permission", http.StatusForbidden},
		{fault.Internal, "internal", http.StatusInternalServerError},
	}
}

// Detail is an error in JSON.
type Detail struct {
	Kind string `json:"kind"`
	Op   string `json:"op"`
	Text string `json:"text"`
}

// Body is the whole answer to a request that failed.
type Body struct {
	Error Detail `json:"error"`
}

// Of describes err and gives its HTTP status. An error without a kind is internal, unless it is a context that
// ended: then nobody knows whether the operation took effect, which is what aborted means.
func Of(err error) (Body, int) {
	kind := KindOf(err)
	entry, ok := lookup(func(e Entry) bool { return e.Kind == kind })
	if !ok { // fault.None inside an error, or a number that we do not know: a bug of the caller
		entry, _ = lookup(func(e Entry) bool { return e.Kind == fault.Internal })
	}
	detail := Detail{Kind: entry.Word, Text: err.Error()}
	if f, direct := err.(*fault.Error); direct && f.Op != "" {
		detail.Op, detail.Text = f.Op, strings.TrimPrefix(strings.TrimPrefix(err.Error(), f.Op), ": ")
	}
	return Body{Error: detail}, entry.Status
}

// KindOf is fault.KindOf, except that it knows contexts.
func KindOf(err error) fault.Kind {
	var f *fault.Error
	if !errors.As(err, &f) && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		return fault.Aborted
	}
	return fault.KindOf(err)
}

// Err is the error that d describes. A word that this version does not know becomes internal: its text stays.
func (d Detail) Err() error {
	entry, ok := lookup(func(e Entry) bool { return e.Word == d.Kind })
	if !ok {
		return fault.New(fault.Internal, d.Op, d.Text+" (error kind "+d.Kind+" is of another version of samovar)")
	}
	return fault.New(entry.Kind, d.Op, d.Text)
}

func lookup(match func(Entry) bool) (Entry, bool) {
	for _, e := range Table() {
		if match(e) {
			return e, true
		}
	}
	return Entry{}, false
}
