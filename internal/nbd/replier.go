package nbd

import (
	"time"

	"samovar/internal/block"
	"samovar/internal/fault"
)

// replier writes the answers of one session: everything that is ready by one vectored write.
type replier struct {
	session *session
	out     *gather
	broken  bool   // writing failed: answers are only counted and released
	replied uint64 // requests answered
	failed  uint64 // of those, with an error of the device
}

func newReplier(s *session) *replier { return &replier{session: s, out: newGather(s.conn)} }

// run ends when the queue is closed and empty.
func (r *replier) run() {
	var batch []*slot
	for {
		batch = r.session.replies.next(batch)
		if len(batch) == 0 {
			return
		}
		first := 0
		for i, t := range batch {
			r.add(t)
			if r.out.full() || i == len(batch)-1 {
				r.send(batch[first : i+1])
				first = i + 1
			}
		}
	}
}

// add puts one answer into the gathering.
func (r *replier) add(t *slot) {
	r.replied++
	code := t.code
	if code == errnoOK {
		code = r.outcome(t)
	}
	if r.broken {
		return
	}
	encodeReply(r.out.header(replySize), code, t.cookie)
	if code == errnoOK && t.request.Op == block.Read {
		r.out.data(t.request.Data.Bytes())
	}
}

// outcome translates what the device said. The first failure of a session is logged; a client that reads a bad
// range again and again must not fill the log.
func (r *replier) outcome(t *slot) errno {
	err := t.err
	if err == nil && t.request.Op == block.Read &&
		(t.request.Data == nil || uint64(t.request.Data.Len()) != t.request.Length) {
		// Sending a reply of another length would put the client out of step.
		err = fault.New(fault.Internal, "nbd: read", "the device returned data of a wrong length")
	}
	if err == nil {
		return errnoOK
	}
	if r.failed++; r.failed == 1 {
		r.session.log.Warn("nbd: a request failed, further failures of this session are only counted",
			"op", uint8(t.request.Op), "offset", t.request.Offset, "length", t.request.Length, "error", err)
	}
	return errnoOf(fault.KindOf(err))
}

// send writes what was gathered and gives the slots of done back.
func (r *replier) send(done []*slot) {
	s := r.session
	if !r.broken && !r.out.empty() {
		if s.draining.Load() {
			s.conn.SetWriteDeadline(time.Now().Add(s.options.ReplyTimeout))
		}
		if err := r.out.send(); err != nil {
			r.broken = true
			s.conn.Close() // wakes the receiver
		}
	}
	for _, t := range done {
		t.request.Data.Release()
		t.request.Data = nil
	}
	s.slots.give(done...)
}
