package engine

import (
	"time"

	"samovar/internal/replication"
	"samovar/internal/volume"
)

// Phase is where the engine is in its life.
func (e *Engine) Phase() Phase { return e.phase }

// Record is the volume's record as the engine knows it; its slices may be read, not changed.
func (e *Engine) Record() volume.Configuration { return e.record }

// Status tells how the engine stands.
func (e *Engine) Status() Status {
	s := Status{
		Phase: e.phase, Reason: e.reason, Text: e.text, Doubtful: e.doubtful(), Copied: e.copied, Lossy: e.lossy,
		Suspended: e.suspended(), Record: e.record.Clone(),
	}
	for _, m := range e.members {
		ms := MemberStatus{Pool: m.pool, InSync: m.inSync, Connected: m.up, State: e.memberState(m), Cause: m.cause}
		if !m.inSync {
			// Blocks that were written again since they were copied count twice: an upper bound.
			blocks := m.need.Count() + m.unsynced.Count() + m.syncing.Count()
			ms.OutOfSync = min(blocks, e.blocks()) * volume.BlockSize
		}
		if m.refused != "" {
			ms.Cause = m.refused
		}
		s.Members = append(s.Members, ms)
	}
	return s
}

func (e *Engine) memberState(m *member) string {
	switch {
	case m.inSync && m.failing:
		return "failing"
	case m.inSync:
		return "in-sync"
	case m.refused != "":
		return "refused"
	case m.catchUp != catchUpNone:
		return "catching-up"
	}
	return "absent"
}

// suspended says why requests wait, or nothing if they do not (rule 24).
func (e *Engine) suspended() string {
	switch e.phase {
	case Claiming:
		return "the volume's record is being claimed in the cluster store"
	case Fencing:
		return "no in-sync replica has been reached yet"
	case Waiting:
		return "the lease of an earlier engine has to run out"
	case Settling:
		return "replicas that were not reached are being removed from the in-sync set"
	case Serving, Detaching:
		if cause := e.stopped(); cause != "" {
			return cause
		}
		return e.delayed()
	}
	return ""
}

// stopped says what stops all requests until its cause ends: on-no-quorum decides what becomes of them.
func (e *Engine) stopped() string {
	if c := e.change; c != nil && c.stage == proposing && e.retries > 0 {
		return "the cluster store does not answer, and the in-sync set has to change"
	}
	for _, m := range e.members {
		if m.inSync && m.up && !m.failing {
			if e.working() && !e.leased() {
				return "an in-sync replica has not confirmed its lease"
			}
			return ""
		}
	}
	return "no in-sync replica answers"
}

// delayed says what some requests wait for while others go on.
func (e *Engine) delayed() string {
	if e.phase == Serving && !e.settled && len(e.queue) > 0 {
		return "ranges that the last engine left in doubt are being made identical"
	}
	for _, m := range e.members {
		owes := e.waited(m) >= e.opts.PingTimeout || e.owes(m, 2*e.opts.PingTimeout)
		switch c := e.change; {
		case !owes || !m.inSync || !m.up:
		case c != nil && c.stage != proposing && c.todo&m.bit != 0:
			return "the in-sync set has to change, and a replica does not save it"
		case !m.failing:
			return "an in-sync replica answers, but does not do what it is asked"
		}
	}
	return ""
}

// owes tells whether m has owed any answer for so long.
func (e *Engine) owes(m *member, long time.Duration) bool {
	for _, since := range m.asked {
		if e.ran-since >= long {
			return true
		}
	}
	return false
}

// working tells whether some request is under way.
func (e *Engine) working() bool {
	for _, o := range e.active {
		if o.client && o.kind != replication.Copy {
			return true
		}
	}
	return false
}
