package replicahost

import (
	"samovar/internal/block"
	"samovar/internal/replication/replica"
	"samovar/internal/store"
	"samovar/internal/volume"
	"samovar/internal/wire"
)

// operation turns a request of the state machine into one of the store.
func (r *runner) operation(q *replica.DiskRequest) *store.Op {
	op := &store.Op{
		Range: q.Range, FUA: q.FUA, Punch: q.Punch, Add: q.Add, Drop: q.Drop, State: q.State, Record: q.Record,
		Missing: q.Missing, Token: q.Token, Done: r.done,
	}
	switch q.Op {
	case replica.DiskRead:
		op.Code = store.Read
		op.Buffer = r.host.opts.Buffers.Get(int(q.Range.Length))
		if q.Holes {
			op.Code = store.ReadSegments
		}
	case replica.DiskWrite:
		op.Code = store.Write
		op.Buffer = q.Payload.(*block.Buffer)
	case replica.DiskCopyWrite:
		op.Code = store.WriteSegments
		r.copyWrite(op, q.Payload.(*wire.Segments))
	case replica.DiskZero:
		op.Code = store.Zero
	case replica.DiskSync:
		op.Code = store.Sync
	case replica.DiskReserve:
		op.Code = store.Reserve
	case replica.LogChange:
		op.Code = store.LogChange
	case replica.SaveState:
		op.Code = store.SaveState
	case replica.SaveRecord:
		op.Code = store.SaveRecord
	case replica.DropRecord:
		op.Code = store.DropRecord
	case replica.SaveMissing:
		op.Code = store.SaveMissing
	}
	return op
}

// copyWrite puts the pieces of a copy into one buffer; a copy that is all data is used as it came.
func (r *runner) copyWrite(op *store.Op, s *wire.Segments) {
	if len(s.List) == 1 && s.List[0].Data != nil {
		op.Buffer = s.List[0].Data
		op.Segments = []store.Segment{{Range: op.Range}}
		return
	}
	defer s.Release()
	bytes := 0
	for _, p := range s.List {
		if p.Data != nil {
			bytes += p.Data.Len()
		}
	}
	if bytes > 0 {
		op.Buffer = r.host.opts.Buffers.Get(bytes)
	}
	at := uint64(0)
	for _, p := range s.List {
		piece := store.Segment{Range: p.Range, Hole: p.Data == nil, At: at}
		if p.Data != nil {
			at += uint64(copy(op.Buffer.Bytes()[at:], p.Data.Bytes()))
		}
		op.Segments = append(op.Segments, piece)
	}
}

// done is called by the store's workers.
func (r *runner) done(op *store.Op, err error) {
	res := replica.DiskResult{Token: op.Token, Status: kindOf(err)}
	switch {
	case op.Code == store.Read && err == nil:
		res.Payload = op.Buffer
	case op.Code == store.ReadSegments && err == nil:
		res.Payload = r.segments(op)
	default:
		op.Buffer.Release()
	}
	if err != nil {
		r.host.opts.Logger.Warn("disk operation failed", "volume", r.key.Volume.String(), "pool", r.key.Pool.String(),
			"operation", op.Code.String(), "error", err)
	}
	if err != nil && (op.Code == store.Sync || op.FUA) {
		// The state machine remembers the loss and sees to the rewriting; until then it lets nothing count.
		r.store.AcceptSyncLoss()
	}
	r.in.Put(event{kind: eventDisk, disk: res})
}

// segments gives the pieces of a read for a copy buffers of their own; a read that is all data keeps its buffer.
func (r *runner) segments(op *store.Op) *wire.Segments {
	if len(op.Segments) == 1 && !op.Segments[0].Hole {
		return &wire.Segments{List: []wire.Segment{{Range: op.Range, Data: op.Buffer}}}
	}
	out := &wire.Segments{}
	for _, p := range op.Segments {
		piece := wire.Segment{Range: volume.Range{Offset: p.Range.Offset, Length: p.Range.Length}}
		if !p.Hole {
			piece.Data = r.host.opts.Buffers.Get(int(p.Range.Length))
			copy(piece.Data.Bytes(), op.Buffer.Bytes()[p.At:])
		}
		out.List = append(out.List, piece)
	}
	op.Buffer.Release()
	return out
}
