package enginehost

import (
	"context"
	"sync"

	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

// device is one opening of the attached volume.
type device struct {
	a        *Attachment
	readOnly bool
	closed   func()
	once     sync.Once
}

// Device opens the attached volume. closed is called when the opening is given back.
func (a *Attachment) Device(readOnly bool, closed func()) block.Device {
	return &device{a: a, readOnly: readOnly, closed: closed}
}

func (d *device) Size() uint64   { return d.a.record.Size }
func (d *device) ReadOnly() bool { return d.readOnly }

func (d *device) Close() error {
	d.once.Do(d.closed)
	return nil
}

// Submit hands a batch to the engine. It waits while too much is in flight.
func (d *device) Submit(batch []*block.Request) {
	if d.readOnly {
		batch = d.refuseWrites(batch)
	}
	entered := 0
	for i, q := range batch {
		if !d.a.gate.enter(q, false) {
			// Those before it go first: nobody else makes room for this one.
			d.put(batch[entered:i])
			entered = i
			d.a.gate.enter(q, true)
		}
	}
	d.put(batch[entered:])
}

func (d *device) put(batch []*block.Request) {
	if len(batch) == 0 {
		return
	}
	own := append([]*block.Request(nil), batch...)
	if !d.a.in.Put(event{kind: eventRequests, requests: own}) {
		for _, q := range own {
			d.a.refuse(q, fault.New(fault.Shutdown, q.Op.String(), "the volume is no longer attached here"))
		}
	}
}

func (d *device) refuseWrites(batch []*block.Request) []*block.Request {
	var kept []*block.Request
	for _, q := range batch {
		if q.Op == block.Read || q.Op == block.Flush {
			kept = append(kept, q)
			continue
		}
		q.Done(q, fault.New(fault.Permission, q.Op.String(), "the export is read-only"))
	}
	return kept
}

// slots number the requests that are with the engine.
type slots struct {
	all  []*slot
	free []uint64
}

// slot is a request of an export. A trim or zero longer than the engine takes is several requests of the engine.
type slot struct {
	request *block.Request
	hold    *hold // instead of a request
	parts   int
	status  fault.Kind
}

// carried is a write, trim or zero, as the engine's payload: it tells when the engine holds the request no longer.
type carried struct {
	data  *block.Buffer // of a write
	bytes int64
	parts int
}

// hold keeps a range as it is while its copies are compared.
type hold struct {
	at      volume.Range
	id      uint64
	started chan error
	ended   chan bool // whether it lasted

	// The loop alone touches these.
	answered bool // by the engine, so that its number may be given back
	over     bool // released by the caller
	freed    bool // its number was given back
}

// Hold waits until nobody writes to a range and keeps it so for a while. release ends that and tells whether it
// lasted until then.
func (a *Attachment) Hold(ctx context.Context, at volume.Range) (release func() bool, err error) {
	h := &hold{at: at, started: make(chan error, 1), ended: make(chan bool, 1)}
	gone := fault.New(fault.Shutdown, "compare volume "+a.record.Name, "it is no longer attached here")
	if !a.in.Put(event{kind: eventHold, hold: h}) {
		return nil, gone
	}
	release = func() bool {
		if !a.in.Put(event{kind: eventRelease, hold: h}) {
			return false
		}
		select {
		case held := <-h.ended:
			return held
		case <-a.ended:
			return false
		}
	}
	select {
	case err := <-h.started:
		if err != nil {
			release()
			return nil, err
		}
		return release, nil
	case <-a.ended:
		return nil, gone
	case <-ctx.Done():
		go release()
		return nil, fault.New(fault.Unavailable, "compare volume "+a.record.Name, "I/O is suspended: "+a.Status().Suspended)
	}
}

// release ends a hold. One that the engine has not answered keeps its number until it has: the answer names it.
func (a *Attachment) release(h *hold) {
	held := false
	h.over = true
	if h.answered && !h.freed {
		h.freed = true
		held = a.eng.Release(h.id)
		a.slots.take(h.id)
	}
	select {
	case h.ended <- held:
	default: // nobody waits
	}
}

func (s *slots) put(x *slot) uint64 {
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		s.all[i] = x
		return i
	}
	s.all = append(s.all, x)
	return uint64(len(s.all) - 1)
}

func (s *slots) take(i uint64) *slot {
	x := s.all[i]
	s.all[i] = nil
	s.free = append(s.free, i)
	return x
}

func (s *slots) each(f func(*block.Request)) {
	for _, x := range s.all {
		if x != nil && x.request != nil {
			q := x.request
			x.request = nil
			f(q)
		}
	}
	s.all, s.free = nil, nil
}

// submit gives requests to the engine. The loop calls it.
func (a *Attachment) submit(requests []*block.Request) {
	out := make([]engine.Request, 0, len(requests))
	for _, q := range requests {
		r := engine.Request{FUA: q.FUA, Range: volume.Range{Offset: q.Offset, Length: q.Length}}
		switch q.Op {
		case block.Read:
			r.Op = replication.Read
		case block.Write:
			r.Op, r.Payload = replication.Write, &carried{data: q.Data.Retain(), bytes: memory(q), parts: 1}
		case block.Trim:
			r.Op, r.Punch = replication.Zero, true
		case block.Zero:
			r.Op, r.Punch = replication.Zero, !q.NoHole
		case block.Flush:
			r.Op = replication.Sync
		}
		x := &slot{request: q}
		if r.Op != replication.Zero || q.Length <= volume.MaxRequest {
			x.parts = 1
			if r.Op == replication.Zero {
				r.Payload = &carried{parts: 1}
			}
			r.ID = a.slots.put(x)
			out = append(out, r)
			continue
		}
		if q.Offset > a.record.Size || q.Length > a.record.Size-q.Offset {
			a.refuse(q, fault.New(fault.Invalid, q.Op.String()+" of volume "+a.record.Name, "beyond the end of the volume"))
			continue
		}
		whole := &carried{}
		for off := uint64(0); off < q.Length; off += volume.MaxRequest {
			part := r
			part.Range = volume.Range{Offset: q.Offset + off, Length: min(volume.MaxRequest, q.Length-off)}
			x.parts++
			whole.parts++
			part.Payload = whole
			part.ID = a.slots.put(x)
			out = append(out, part)
		}
	}
	a.eng.Submit(out)
}

// complete answers a request of an export.
func (a *Attachment) complete(c *engine.Completion) {
	if x := a.slots.all[c.ID]; x.hold != nil { // keeps its number until it is released
		var err error
		if c.Status != fault.None {
			err = fault.New(c.Status, "compare volume "+a.record.Name, "the range cannot be held")
		}
		x.hold.answered = true
		x.hold.started <- err
		if x.hold.over {
			a.in.Put(event{kind: eventRelease, hold: x.hold}) // nobody waited for it any more
		}
		return
	}
	x := a.slots.take(c.ID)
	x.parts--
	if c.Status != fault.None {
		x.status = c.Status
	}
	if b, ok := c.Payload.(*block.Buffer); ok {
		x.request.Data = b
	}
	if q := x.request; q.Op == block.Read && x.status == fault.None && (q.Data == nil || uint64(q.Data.Len()) != q.Length) {
		x.status = fault.Corrupt // the replica answered with something else than was asked for
	}
	if x.parts > 0 {
		return
	}
	q := x.request
	x.request = nil
	var err error
	if x.status != fault.None {
		err = fault.New(x.status, q.Op.String()+" of volume "+a.record.Name, "")
	}
	a.answer(q, err)
}

// answer ends a request of an export. Of what carries data, or changes some, the engine says later when it lets go.
func (a *Attachment) answer(q *block.Request, err error) {
	a.gate.answered(q)
	if q.Op == block.Read || q.Op == block.Flush {
		a.gate.dropped(memory(q))
	}
	q.Done(q, err)
}

// refuse ends a request that the engine has not seen.
func (a *Attachment) refuse(q *block.Request, err error) {
	a.gate.answered(q)
	a.gate.dropped(memory(q))
	q.Done(q, err)
}

// released tells that the engine holds a payload no longer.
func (a *Attachment) released(p replication.Payload) {
	c, ok := p.(*carried)
	if !ok {
		return
	}
	c.data.Release()
	if c.parts--; c.parts == 0 {
		a.gate.dropped(c.bytes)
	}
}
