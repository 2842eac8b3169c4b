package simulation

import (
	"slices"
	"time"

	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/replication/replica"
	"samovar/internal/volume"
)

// metadata is what a store holds beside the data. Every change is durable and whole when it is answered; one that
// a crash meets under way is there or not.
type metadata struct {
	state   volume.ReplicaState
	records []volume.ChangeRecord // by pool
	missing *bitmap.Bitmap
	log     []uint64 // ascending
	// ghosts are entries that were dropped from the log, or records that were dropped, since the last durable
	// append: they may come back.
	ghosts  []uint64
	dropped []volume.ChangeRecord
	flight  [lanes][]*operation // changes under way, in order
}

// Lanes of metadata. Changes of one lane take effect in order; the lanes know nothing of each other.
const (
	logLane = iota
	fileLane
	lanes
)

func laneOf(op replica.DiskOp) int {
	if op == replica.LogChange {
		return logLane
	}
	return fileLane
}

// dirty tells whether a restart will find entries in the log.
func (m *metadata) dirty() bool { return len(m.log) > 0 || m.changing() }

// changing tells whether any change is under way.
func (m *metadata) changing() bool { return len(m.flight[logLane]) > 0 || len(m.flight[fileLane]) > 0 }

// submitMeta queues a change of metadata in its lane.
func (d *disk) submitMeta(op *operation, done func(replica.DiskResult)) {
	m, w, lane := &d.meta, d.w, laneOf(op.request.Op)
	op.save = m.prepare(op.request)
	m.flight[lane] = append(m.flight[lane], op)
	mean := w.profile.metaTime
	if op.request.Op == replica.LogChange {
		mean /= 2
	}
	var end func()
	end = func() {
		at := slices.Index(m.flight[lane], op)
		switch {
		case at < 0:
			return // it ended with its process
		case d.hangs(m.flight[lane][0].request.Op):
			d.park(end)
			return
		case at > 0:
			w.after(w.between(10_000, 200_000), end)
			return
		}
		m.flight[lane] = slices.Delete(m.flight[lane], 0, 1)
		res := replica.DiskResult{Token: op.request.Token}
		if w.chance(d.metaFails) {
			res.Status = fault.IO
			w.truth.broke(d.machine, "failed metadata", false)
			if w.chance(0.5) {
				op.save()
			}
		} else {
			op.save()
		}
		d.accepted = max(d.accepted, m.state.Accepted.Generation)
		w.mix(uint64(d.machine.index)<<8|uint64(op.request.Op), uint64(res.Status), uint64(len(m.log)))
		if w.tracing() {
			w.log("disk %d: %s -> %v%s", d.machine.index, opName(op.request.Op), res.Status, metaText(op.request))
		}
		done(res)
	}
	w.after(w.around(time.Duration(float64(mean)*d.slow)), end)
}

// prepare copies what the request says now, and gives what makes it so.
func (m *metadata) prepare(q replica.DiskRequest) (save func()) {
	switch q.Op {
	case replica.LogChange:
		add, drop := slices.Clone(q.Add), slices.Clone(q.Drop)
		return func() { m.changeLog(add, drop) }
	case replica.SaveState:
		state := cloneState(*q.State)
		return func() { m.state = state }
	case replica.SaveRecord:
		rec := cloneRecord(*q.Record)
		return func() {
			m.dropRecord(rec.Pool)
			m.dropped = slices.DeleteFunc(m.dropped, func(r volume.ChangeRecord) bool { return r.Pool == rec.Pool })
			m.records = append(m.records, rec)
			slices.SortFunc(m.records, comparePools)
		}
	case replica.DropRecord:
		pool := q.Record.Pool
		return func() {
			if i := slices.IndexFunc(m.records, func(r volume.ChangeRecord) bool { return r.Pool == pool }); i >= 0 {
				m.dropped = append(m.dropped, m.records[i])
			}
			m.dropRecord(pool)
		}
	default:
		missing := q.Missing.Clone()
		return func() { m.missing = missing }
	}
}

func comparePools(a, b volume.ChangeRecord) int { return slices.Compare(a.Pool[:], b.Pool[:]) }

func (m *metadata) dropRecord(pool volume.PoolID) {
	m.records = slices.DeleteFunc(m.records, func(r volume.ChangeRecord) bool { return r.Pool == pool })
}

func (m *metadata) changeLog(add, drop []uint64) {
	for _, n := range add {
		if i, ok := slices.BinarySearch(m.log, n); !ok {
			m.log = slices.Insert(m.log, i, n)
		}
	}
	if len(add) > 0 {
		m.ghosts = m.ghosts[:0]
	}
	for _, n := range drop {
		if i, ok := slices.BinarySearch(m.log, n); ok {
			m.log = slices.Delete(m.log, i, i+1)
			m.ghosts = append(m.ghosts, n)
		}
	}
}

// crash decides about what was under way and about drops that need not be durable.
func (m *metadata) crash(w *World) {
	for lane, flight := range m.flight {
		for _, op := range flight {
			if !w.chance(0.5) {
				break // an append that did not make it leaves no later one
			}
			op.save()
		}
		m.flight[lane] = nil
	}
	if len(m.ghosts) > 0 && w.chance(0.5) {
		m.changeLog(slices.Clone(m.ghosts), nil)
	}
	if len(m.dropped) > 0 && w.chance(0.5) {
		for _, rec := range m.dropped {
			if !slices.ContainsFunc(m.records, func(r volume.ChangeRecord) bool { return r.Pool == rec.Pool }) {
				m.records = append(m.records, rec)
			}
		}
		slices.SortFunc(m.records, comparePools)
	}
	m.ghosts, m.dropped = nil, nil
}

// stored is what a process finds that opens the replica now.
func (m *metadata) stored(incarnation volume.Incarnation) volume.Stored {
	s := volume.Stored{
		State: cloneState(m.state), Log: slices.Clone(m.log), Missing: m.missing.Clone(), Incarnation: incarnation,
	}
	for _, rec := range m.records {
		s.Records = append(s.Records, cloneRecord(rec))
	}
	return s
}

func (m *metadata) clone() metadata {
	s := m.stored(volume.Incarnation{})
	return metadata{state: s.State, records: s.Records, missing: s.Missing, log: s.Log}
}

func cloneState(s volume.ReplicaState) volume.ReplicaState {
	s.Accepted = s.Accepted.Clone()
	s.History = slices.Clone(s.History)
	return s
}

func cloneRecord(r volume.ChangeRecord) volume.ChangeRecord {
	r.Blocks = r.Blocks.Clone()
	return r
}

// logged tells whether a region stands in the durable log.
func (m *metadata) logged(region uint64) bool {
	_, ok := slices.BinarySearch(m.log, region)
	return ok
}
