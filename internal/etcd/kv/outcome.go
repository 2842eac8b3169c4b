package kv

import "samovar/internal/fault"

// Verdict is what is known about a write.
type Verdict uint8

// The verdicts. The zero value is the one that promises nothing.
const (
	Unknown    Verdict = iota // may or may not have happened, or may happen yet
	Applied                   // happened
	Conflict                  // did not happen: a condition was false
	NotApplied                // did not happen: refused or never sent
)

// String names the verdict in words.
func (v Verdict) String() string {
	switch v {
	case Applied:
		return "applied"
	case Conflict:
		return "conflict"
	case NotApplied:
		return "not applied"
	}
	return "unknown"
}

// Outcome is the result of a write. Err is nil exactly when the verdict is Applied, so code that looks at Err
// alone never takes another verdict for success.
type Outcome struct {
	Verdict Verdict
	// Revision of the store after the write (Applied) or at which Current was read (Conflict).
	Revision int64
	// Current holds, on Conflict, the records that stand under the keys of the conditions, in order of the
	// conditions; absent keys are left out.
	Current []KV
	// Err says why, with one of these kinds. Conflict: Exists (must not exist, but does), NotFound (expected, but
	// gone), Aborted (changed since it was read). Unknown: Aborted. NotApplied: Unavailable, Invalid, NoSpace,
	// NotFound (no such lease), Permission, Aborted (the caller gave up before it was sent), Shutdown.
	Err error
}

// Done is the outcome of a write that happened.
func Done(revision int64) Outcome { return Outcome{Verdict: Applied, Revision: revision} }

// Refused is the outcome of a write that certainly did not happen.
func Refused(err error) Outcome { return Outcome{Verdict: NotApplied, Err: err} }

// Uncertain is the outcome of a write whose effect is not known.
func Uncertain(op, text string, cause error) Outcome {
	return Outcome{Err: &fault.Error{Kind: fault.Aborted, Op: op, Text: unknownText + text, Err: cause}}
}

const unknownText = "it is not known whether this happened; read the record before trying again: "

// Conflicting is the outcome of a write with a false condition; current is what stands under the conditions' keys.
func Conflicting(op string, revision int64, conditions []Condition, current []KV) Outcome {
	found := map[string]KV{}
	for _, r := range current {
		found[r.Key] = r
	}
	out := Outcome{Verdict: Conflict, Revision: revision, Current: current}
	for _, c := range conditions {
		r, there := found[c.Key]
		switch {
		case r.ModRevision == c.ModRevision:
			continue
		case c.ModRevision == 0:
			out.Err = fault.New(fault.Exists, op, c.Key+" exists already")
		case !there:
			out.Err = fault.New(fault.NotFound, op, c.Key+" is gone")
		default:
			out.Err = fault.New(fault.Aborted, op, c.Key+" was changed since it was read")
		}
		return out
	}
	// The store said that a condition was false, and what it showed satisfies all of them.
	out.Err = fault.New(fault.Internal, op, "a conflict without a false condition")
	return out
}
