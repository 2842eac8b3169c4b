package simulation

import (
	"slices"
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication/replica"
	"samovar/internal/volume"
)

// disk is the medium of one replica: its data as the kernel shows it (cached) and as a loss of power leaves it
// (durable), and the metadata of the store.
//
//	cached = durable + unsynced, applied in order; except where a failed sync dropped pages that the cache still shows
type disk struct {
	w       *World
	machine *machine
	cached  *image
	durable *image
	// unsynced lists completed operations, oldest first, that a loss of power may undo sector by sector.
	unsynced []unsynced
	flight   []*operation // under way, in the order of their start
	turn     uint64       // counts completions of data operations
	meta     metadata
	space    *space

	slow      float64 // factor on all times
	readFails float64 // chances of failure for each operation
	syncFails float64
	writeFail float64
	metaFails float64
	hung      [replica.SaveMissing + 1]bool // kinds of operation that do not end
	parked    []func()                      // ends of operations that hang
	storm     storm
	// applied tells which writes ever reached the cached image in full, to check acknowledgements.
	applied  map[uint64]bool
	snapshot *snapshot // an old copy that may be put back
	// accepted is the highest generation that ever was durable here as accepted.
	accepted volume.Generation
}

// snapshot is all that a medium holds at a moment.
type snapshot struct {
	data *image
	meta metadata
}

// unsynced is what one operation left in the cache.
type unsynced struct {
	turn   uint64
	always bool // FUA: already durable, kept in the list only for its place in the order
	pieces []Piece
}

// operation is a request under way.
type operation struct {
	request replica.DiskRequest
	pieces  []Piece // what it writes
	turn    uint64  // completions before its start, for a sync
	save    func()  // metadata: makes it durable
}

func newDisk(w *World, m *machine, size uint64) *disk {
	return &disk{
		w: w, machine: m, slow: 1, cached: newImage(size, hole), durable: newImage(size, hole),
		applied: map[uint64]bool{}, space: newSpace(size),
	}
}

// submit starts a request; done gets its result unless the process that asked is dead by then.
func (d *disk) submit(q replica.DiskRequest, done func(replica.DiskResult)) {
	op := &operation{request: q, turn: d.turn}
	switch q.Op {
	case replica.DiskWrite, replica.DiskCopyWrite, replica.DiskZero:
		op.pieces = d.content(q)
	case replica.LogChange, replica.SaveState, replica.SaveRecord, replica.DropRecord, replica.SaveMissing:
		d.submitMeta(op, done)
		return
	}
	d.checkOverlap(q)
	d.flight = append(d.flight, op)
	var end func()
	end = func() {
		at := slices.Index(d.flight, op)
		switch {
		case at < 0:
			return // it ended with its process
		case d.hangs(q.Op):
			d.park(end)
			return
		}
		d.flight = slices.Delete(d.flight, at, at+1)
		done(d.finish(op))
	}
	d.w.after(d.duration(q), end)
}

// content translates a request into values of sectors.
func (d *disk) content(q replica.DiskRequest) []Piece {
	if q.Op == replica.DiskZero {
		return []Piece{{Range: q.Range, Hole: q.Punch}}
	}
	switch p := q.Payload.(type) {
	case uint64:
		return []Piece{{Range: q.Range, Stamp: p}}
	case []Piece:
		at := q.Range.Offset
		for _, piece := range p {
			if piece.Range.Offset != at {
				d.w.fail("replica %d: payload for %v has a piece at %v", d.machine.index, q.Range, piece.Range)
			}
			at = piece.Range.End()
		}
		if at != q.Range.End() {
			d.w.fail("replica %d: payload for %v ends at %d", d.machine.index, q.Range, at)
		}
		if q.SkipHoles {
			p = slices.DeleteFunc(slices.Clone(p), func(c Piece) bool { return c.Hole })
		}
		return p
	default:
		d.w.fail("replica %d: payload of a write to %v is %T", d.machine.index, q.Range, q.Payload)
		return nil
	}
}

func changes(op replica.DiskOp) bool {
	return op == replica.DiskWrite || op == replica.DiskCopyWrite || op == replica.DiskZero
}

// checkOverlap holds the replica to its word that overlapping requests are never under way together. A copy that
// was given up may still be read at its source while writes go on: what it reads is then torn, and nobody may use it.
func (d *disk) checkOverlap(q replica.DiskRequest) {
	for _, o := range d.flight {
		if changes(q.Op) && changes(o.request.Op) && q.Range.Overlaps(o.request.Range) {
			d.w.fail("replica %d: %s of %v started while %s of %v is under way",
				d.machine.index, opName(q.Op), q.Range, opName(o.request.Op), o.request.Range)
			return
		}
	}
}

// read gives what the cache shows; of a write under way it may show parts.
func (d *disk) read(r volume.Range) []Piece {
	source := d.cached
	for _, o := range d.flight {
		if changes(o.request.Op) && o.request.Range.Overlaps(r) {
			if source == d.cached {
				source = d.cached.clone()
			}
			for _, p := range d.tear(o.pieces) {
				source.set(p.Range.Offset, p.Range.End(), p.value())
			}
		}
	}
	return source.pieces(r)
}

func (d *disk) duration(q replica.DiskRequest) time.Duration {
	mean := 300 * time.Microsecond
	switch q.Op {
	case replica.DiskSync:
		mean = 2 * time.Millisecond
	case replica.DiskRead:
		mean = 200 * time.Microsecond
	case replica.DiskReserve:
		mean = 100 * time.Microsecond
	}
	mean += time.Duration(q.Range.Length/1024) * time.Microsecond // about 1 GB/s
	if d.w.chance(d.w.profile.stragglers) {
		mean *= 30
	}
	return 20*time.Microsecond + d.w.around(time.Duration(float64(mean)*d.slow))
}

// finish carries an operation out and says how it went.
func (d *disk) finish(op *operation) replica.DiskResult {
	q, w := op.request, d.w
	res := replica.DiskResult{Token: q.Token}
	switch {
	case q.Op == replica.DiskRead:
		if w.chance(d.readFails) {
			res.Status = fault.IO
			w.truth.broke(d.machine, "failed read", false)
			break
		}
		res.Payload = d.read(q.Range)
	case q.Op == replica.DiskSync:
		if w.chance(d.syncFails) {
			d.failSync(op.turn)
			res.Status = fault.IO
			break
		}
		d.sync(op.turn)
	case q.Op == replica.DiskReserve:
		if !d.space.reserve(q.Range) {
			res.Status = fault.NoSpace
		}
	case w.chance(d.writeFail):
		res.Status = fault.IO
		d.apply(d.tear(op.pieces), false)
		w.truth.broke(d.machine, "failed write", false)
	case !d.space.admit(op.pieces, q.Op == replica.DiskZero && q.Punch):
		res.Status = fault.NoSpace
		w.stats.NoSpace++
	default:
		d.apply(op.pieces, q.FUA)
		for _, p := range op.pieces {
			if p.Stamp >= firstReal {
				d.applied[p.Stamp] = true
			}
		}
	}
	w.mix(uint64(d.machine.index)<<8|uint64(q.Op), q.Range.Offset, q.Range.Length<<8|uint64(res.Status))
	if w.tracing() {
		w.log("disk %d: %s %d+%d -> %v %s", d.machine.index, opName(q.Op), q.Range.Offset, q.Range.Length, res.Status,
			piecesText(op.pieces))
	}
	return res
}

// apply shows pieces in the cache; they are durable at once if always.
func (d *disk) apply(pieces []Piece, always bool) {
	if len(pieces) == 0 {
		return
	}
	for _, p := range pieces {
		d.cached.set(p.Range.Offset, p.Range.End(), p.value())
	}
	d.turn++
	d.unsynced = append(d.unsynced, unsynced{turn: d.turn, always: always, pieces: pieces})
}

func (p Piece) value() uint64 {
	switch {
	case p.Hole:
		return hole
	case p.Stamp == 0:
		return zeroes
	default:
		return p.Stamp
	}
}

// sync makes durable what was completed up to a turn.
func (d *disk) sync(turn uint64) {
	n := 0
	for n < len(d.unsynced) && d.unsynced[n].turn <= turn {
		for _, p := range d.unsynced[n].pieces {
			d.durable.set(p.Range.Offset, p.Range.End(), p.value())
		}
		n++
	}
	d.unsynced = slices.Delete(d.unsynced, 0, n)
}

// failSync does what Linux does when writing back fails: each dirty page may be durable or not, all are marked
// clean, and the cache goes on to show the new content until it drops the page, and the old one afterwards.
func (d *disk) failSync(turn uint64) {
	n, lost := 0, false
	var evicted []volume.Range
	for n < len(d.unsynced) && d.unsynced[n].turn <= turn {
		u := d.unsynced[n]
		kept := u.pieces
		if !u.always {
			kept = d.tear(u.pieces)
		}
		for _, p := range kept {
			d.durable.set(p.Range.Offset, p.Range.End(), p.value())
		}
		if !u.always {
			lost = true
			if d.w.chance(0.5) {
				for _, p := range u.pieces {
					evicted = append(evicted, p.Range)
				}
			}
		}
		n++
	}
	d.unsynced = slices.Delete(d.unsynced, 0, n)
	for _, r := range evicted {
		d.evict(r)
	}
	d.w.truth.broke(d.machine, "failed sync", lost)
}

// evict drops clean pages from the cache, so that it shows what the medium holds.
func (d *disk) evict(r volume.Range) {
	d.cached.paste(d.durable, r.Offset, r.End())
	for _, u := range d.unsynced {
		for _, p := range u.pieces {
			d.cached.set(max(p.Range.Offset, r.Offset), min(p.Range.End(), r.End()), p.value())
		}
	}
}

// tear picks the sectors of pieces that make it: all, none, or some between random cuts.
func (d *disk) tear(pieces []Piece) []Piece {
	w := d.w
	switch w.rng.IntN(4) {
	case 0:
		return nil
	case 1:
		return pieces
	}
	var out []Piece
	for _, p := range pieces {
		if len(pieces) > 4 && w.chance(0.5) {
			if w.chance(0.5) {
				out = append(out, p)
			}
			continue
		}
		at, keep := p.Range.Offset, w.chance(0.5)
		for at < p.Range.End() {
			left := (p.Range.End() - at) / volume.SectorSize
			n := (1 + w.rng.Uint64N(left)) * volume.SectorSize
			if keep {
				out = append(out, Piece{Range: volume.Range{Offset: at, Length: n}, Stamp: p.Stamp, Hole: p.Hole})
			}
			at, keep = at+n, !keep
		}
	}
	return out
}

// restartProcess ends what is under way: the kernel may still do all, some or none of it. The cache survives.
func (d *disk) restartProcess() {
	dirty := d.endFlight()
	if dirty || d.meta.dirty() {
		d.w.truth.broke(d.machine, "restart", false)
	}
}

// endFlight ends what is under way and tells whether anything may be undone or done by halves.
func (d *disk) endFlight() (dirty bool) {
	dirty = len(d.unsynced) > 0 || d.meta.dirty()
	for _, op := range d.flight {
		if changes(op.request.Op) {
			dirty = true
			d.apply(d.tear(op.pieces), false)
		}
	}
	d.flight = nil
	d.meta.crash(d.w)
	d.space.crash()
	return dirty
}

// losePower leaves what is durable and some sectors of the rest.
func (d *disk) losePower() {
	d.endFlight()
	lost := len(d.unsynced) > 0
	for _, u := range d.unsynced {
		kept := u.pieces
		if !u.always {
			kept = d.tear(u.pieces)
		}
		for _, p := range kept {
			d.durable.set(p.Range.Offset, p.Range.End(), p.value())
		}
	}
	d.unsynced = nil
	if !lost {
		_, _, _, lost = d.cached.difference(d.durable) // pages that a failed sync dropped
	}
	d.cached = d.durable.clone()
	if lost || d.meta.dirty() {
		d.w.truth.broke(d.machine, "loss of power", lost)
	}
}

func (d *disk) copy() *snapshot { return &snapshot{data: d.durable.clone(), meta: d.meta.clone()} }

// putBack makes the medium of a machine that is down what it was.
func (d *disk) putBack(s *snapshot) {
	d.cached, d.durable, d.meta, d.unsynced = s.data.clone(), s.data.clone(), s.meta.clone(), nil
}

// shownOnly tells whether the cache shows some of a piece that is not on the medium.
func (d *disk) shownOnly(p Piece) (only bool) {
	d.cached.each(p.Range.Offset, p.Range.End(), func(from, to, v uint64) {
		if v == p.value() && d.durable.count(from, to, v) != to-from {
			only = true
		}
	})
	return only
}

// writesUnderWay counts operations that change data.
func (d *disk) writesUnderWay() int {
	n := 0
	for _, op := range d.flight {
		if changes(op.request.Op) {
			n++
		}
	}
	return n
}
