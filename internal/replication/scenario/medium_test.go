package scenario

import (
	"maps"
	"slices"

	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/replication/replica"
	"samovar/internal/volume"
)

// medium is a toy disk. Metadata is durable at once, data when it is synced. Each kind of operation can be made to
// hang or to fail.
type medium struct {
	stored  volume.Stored
	log     map[uint64]bool
	sectors map[uint64]string // by sector; absent: zero
	durable map[uint64]string // what a loss of power leaves
	full    bool
	old     *medium // a snapshot

	hold  map[replica.DiskOp]bool
	held  []replica.DiskRequest
	fail  map[replica.DiskOp]int // how many operations will fail; negative: all
	count map[replica.DiskOp]int // since somebody counted
}

// diskOps are the kinds of operation by the names that scripts use.
var diskOps = map[string][]replica.DiskOp{
	"read": {replica.DiskRead}, "write": {replica.DiskWrite}, "copy": {replica.DiskCopyWrite}, "zero": {replica.DiskZero},
	"sync": {replica.DiskSync}, "reserve": {replica.DiskReserve}, "log": {replica.LogChange}, "state": {replica.SaveState},
	"record": {replica.SaveRecord, replica.DropRecord}, "missing": {replica.SaveMissing},
	"metadata": {replica.LogChange, replica.SaveState, replica.SaveRecord, replica.DropRecord, replica.SaveMissing},
}

func newMedium() *medium {
	return &medium{
		log: map[uint64]bool{}, sectors: map[uint64]string{}, durable: map[uint64]string{},
		hold: map[replica.DiskOp]bool{}, fail: map[replica.DiskOp]int{}, count: map[replica.DiskOp]int{},
	}
}

// open gives what a process finds that starts now. What hung is gone with the process before.
func (m *medium) open() volume.Stored {
	m.held = nil
	s := m.stored
	s.Log = slices.Sorted(maps.Keys(m.log))
	return s
}

func (m *medium) space() uint64 {
	if m.full {
		return 0
	}
	return 1 << 40
}

func (m *medium) losePower() { m.sectors = maps.Clone(m.durable) }

// snapshot keeps all that is durable; rollBack puts it back.
func (m *medium) snapshot() {
	m.old = &medium{stored: m.stored, log: maps.Clone(m.log), durable: maps.Clone(m.durable)}
	m.old.stored.Records = slices.Clone(m.stored.Records)
}

func (m *medium) rollBack() {
	m.stored, m.log, m.durable, m.sectors = m.old.stored, m.old.log, m.old.durable, maps.Clone(m.old.durable)
}

// submit carries out a request, unless it hangs.
func (m *medium) submit(q replica.DiskRequest) (res replica.DiskResult, done bool) {
	m.count[q.Op]++
	if m.hold[q.Op] {
		m.held = append(m.held, q)
		return res, false
	}
	return m.perform(q), true
}

// release ends operations that hang, in order.
func (m *medium) release(ops []replica.DiskOp, done func(replica.DiskResult)) {
	for _, op := range ops {
		delete(m.hold, op)
	}
	held := m.held
	m.held = nil
	for _, q := range held {
		if m.hold[q.Op] {
			m.held = append(m.held, q)
		} else {
			done(m.perform(q))
		}
	}
}

func (m *medium) perform(q replica.DiskRequest) replica.DiskResult {
	res := replica.DiskResult{Token: q.Token}
	from, to := q.Range.Offset/volume.SectorSize, q.Range.End()/volume.SectorSize
	if n := m.fail[q.Op]; n != 0 {
		m.fail[q.Op] = max(n-1, -1)
		res.Status = fault.IO
		if p, ok := q.Payload.(piece); ok {
			m.put(p, from, (from+to)/2, false) // a write that fails may have done some of it
		}
		return res
	}
	switch q.Op {
	case replica.DiskRead:
		p := piece{from: from, to: to}
		for s := from; s < to; s++ {
			p.data = append(p.data, m.sectors[s])
		}
		res.Payload = p
	case replica.DiskWrite, replica.DiskCopyWrite:
		m.put(q.Payload.(piece), from, to, q.FUA)
	case replica.DiskZero:
		m.put(piece{from: from, to: to, data: make([]string, to-from)}, from, to, q.FUA)
	case replica.DiskSync:
		m.durable = maps.Clone(m.sectors)
	case replica.DiskReserve:
		if m.full {
			res.Status = fault.NoSpace
		}
	default:
		m.save(q)
	}
	return res
}

func (m *medium) put(p piece, from, to uint64, durable bool) {
	for s := from; s < to; s++ {
		set(m.sectors, s, p.data[s-p.from])
		if durable {
			set(m.durable, s, p.data[s-p.from])
		}
	}
}

func set(sectors map[uint64]string, s uint64, v string) {
	if v == "" {
		delete(sectors, s)
	} else {
		sectors[s] = v
	}
}

func (m *medium) save(q replica.DiskRequest) {
	switch q.Op {
	case replica.LogChange:
		for _, d := range q.Drop {
			delete(m.log, d)
		}
		for _, d := range q.Add {
			m.log[d] = true
		}
	case replica.SaveState:
		m.stored.State = *q.State
	case replica.SaveMissing:
		m.stored.Missing = q.Missing
	case replica.SaveRecord, replica.DropRecord:
		m.stored.Records = slices.DeleteFunc(m.stored.Records, func(c volume.ChangeRecord) bool { return c.Pool == q.Record.Pool })
		if q.Op == replica.SaveRecord {
			m.stored.Records = append(m.stored.Records, *q.Record)
		}
	}
}

func show(p replication.Payload) string {
	d, ok := p.(piece)
	if !ok {
		return ""
	}
	out, last := "", "?"
	for _, v := range d.data {
		if v == "" {
			v = "0"
		}
		if v != last {
			out += " " + v
			last = v
		}
	}
	return " =" + out
}
