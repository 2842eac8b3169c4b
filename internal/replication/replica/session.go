package replica

import (
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// Receive takes a message of an open session.
func (r *Replica) Receive(s Session, m replication.Message) {
	switch {
	case !r.sessions[s]:
	case r.failed:
		r.refuse(s, fault.IO, "the replica's metadata could not be written")
	case m.Volume != r.state.Volume || m.Pool != r.state.Pool:
		r.refuse(s, fault.Foreign, "this is pool "+r.state.Pool.String()+" with volume "+r.state.Volume.String())
	case m.Kind == replication.Hello:
		r.receiveHello(s, m)
	case m.Kind == replication.Fetch:
		r.receiveFetch(s, m)
	case s == r.engine:
		r.watermarks(m)
		r.dispatch(m)
	default:
		r.refuse(s, fault.Fenced, "the session was not opened by a Hello")
	}
	r.advance()
}

func (r *Replica) refuse(s Session, kind fault.Kind, text string) {
	r.send(s, replication.Message{Kind: replication.Refuse, Status: kind, Text: text, Fence: r.state.Fence})
	r.hangUp(s)
}

// obeys tells whether a fence may be raised here (rule 8).
func (r *Replica) obeys(f volume.Fence) bool {
	have := r.state.Fence
	return f.Epoch > have.Epoch || f == have
}

func (r *Replica) receiveHello(s Session, m replication.Message) {
	switch {
	case m.Fence.Epoch == 0 || m.Fence.Engine == (volume.EngineID{}):
		r.refuse(s, fault.Invalid, "a hello needs an epoch and an engine")
	case !r.obeys(m.Fence):
		r.refuse(s, fault.Fenced, "a newer engine has fenced this replica")
	case m.Configuration == nil || m.Configuration.Size != r.state.Accepted.Size:
		r.refuse(s, fault.Invalid, "the engine's record gives the volume another size than this replica has")
	case r.hello != nil && r.hello.saving:
		// The fence of the other hello is being saved: it is the later one that must try again.
		r.refuse(s, fault.Unavailable, "another session is being opened")
	default:
		if r.hello != nil {
			r.hangUp(r.hello.session)
		}
		r.hello = &hello{session: s, message: m}
		if r.engine != 0 {
			r.hangUp(r.engine)
		}
	}
}

// admitHello answers a waiting hello once all earlier sessions are closed and their I/O has ended (rule 8).
func (r *Replica) admitHello() {
	h := r.hello
	if h == nil || h.saving {
		return
	}
	if !r.opts.Bugs.NoDrain && (r.busy > 0 || r.log.changing || r.meta.busy()) {
		return
	}
	h.saving = true
	if h.message.Fence == r.state.Fence {
		r.welcome(h)
		return
	}
	r.inherit()
	r.state.Fence = h.message.Fence
	r.saveState(func() { r.welcome(h) })
}

// inherit turns what was under way under the older fence into doubt.
func (r *Replica) inherit() {
	if r.recents.wide {
		r.recents.doubt(r.log.dirtyRanges(r.state.Accepted.Size))
	}
	r.recents.inherit()
	r.log.inherit()
	r.highest = 0
}

func (r *Replica) welcome(h *hello) {
	r.hello = nil
	if !r.sessions[h.session] {
		return
	}
	r.engine = h.session
	r.limit -= min(r.limit, r.consumed)
	r.consumed = 0
	k := &replication.Knowledge{
		Incarnation: r.incarnation,
		Accepted:    r.state.Accepted.Clone(),
		Prepared:    r.state.Prepared, PreparedID: r.state.PreparedID,
		History:    append([]volume.GenerationID(nil), r.state.History...),
		Broken:     r.broken,
		Doubt:      r.recents.ranges(r.state.Accepted.Size),
		CatchingUp: r.state.CatchingUp, Base: r.state.Base, BaseID: r.state.BaseID,
		Size: r.state.Accepted.Size,
	}
	if r.broken || r.recents.wide { // after a failed sync, what is in the log but no longer recent
		k.Doubt = append(k.Doubt, r.log.dirtyRanges(r.state.Accepted.Size)...)
	}
	if r.state.CatchingUp {
		k.Missing = r.missing.Clone().Within(replication.MaxRuns, r.blocks())
	}
	if h.message.Full {
		k.Records = r.records.snapshot()
		for i := range k.Records {
			k.Records[i].Blocks = k.Records[i].Blocks.Within(replication.MaxRuns, r.blocks())
		}
	}
	r.send(h.session, replication.Message{
		Kind: replication.Welcome, Fence: r.state.Fence, Knowledge: k, Credit: r.limit, Stamp: h.message.Stamp,
	})
}

// blocks is how many blocks the volume has.
func (r *Replica) blocks() uint64 {
	return (r.state.Accepted.Size + volume.BlockSize - 1) / volume.BlockSize
}

// watermarks takes what every message of an engine says about earlier requests.
func (r *Replica) watermarks(m replication.Message) {
	r.recents.complete(m.Completed)
	r.log.flush(m.Flushed)
}

func (r *Replica) dispatch(m replication.Message) {
	switch m.Kind {
	case replication.Write, replication.Zero, replication.Copy:
		r.receiveWork(m)
	case replication.Read:
		r.receiveRead(m)
	case replication.Sync:
		r.receiveSync(m)
	case replication.Reserve:
		r.receiveReserve(m)
	case replication.Ping:
		r.receivePing(m)
	case replication.Prepare:
		r.receivePrepare(m)
	case replication.Accept:
		r.receiveAccept(m)
	case replication.CatchUp:
		r.receiveCatchUp(m)
	case replication.Records:
		r.receiveRecords(m)
	case replication.Settled:
		r.receiveSettled(m)
	case replication.Cancel:
		r.receiveCancel(m)
	default:
		r.refuse(r.engine, fault.Invalid, "a message that only a replica sends")
	}
}

// inside tells whether a peer's range can be a request on this volume (rule 26).
func (r *Replica) inside(g volume.Range) bool { return g.IsRequest(r.state.Accepted.Size) }
