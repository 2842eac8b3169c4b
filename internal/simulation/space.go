package simulation

import "samovar/internal/volume"

// allocation is the granule in which a file takes space.
const allocation = 4096

// space counts what one replica takes of its pool. It promises credit as a pool would: what was promised is kept
// for this replica, whoever else fills the disk.
type space struct {
	on        bool // whether this run looks at space at all
	allocated *image
	used      uint64
	capacity  uint64
	slice     uint64 // promised ahead at most
	promised  uint64 // highest credit that was given out in this session
	consumed  uint64 // bytes of the writes that came in this session
	arrived   uint64 // of these, not yet finished on the medium
}

func newSpace(size uint64) *space {
	rounded := (size + allocation - 1) / allocation * allocation
	return &space{allocated: newImage(rounded, 0), capacity: 4 * rounded, slice: 2 * rounded}
}

func widen(r volume.Range) (from, to uint64) {
	return r.Offset / allocation * allocation, (r.End() + allocation - 1) / allocation * allocation
}

// admit takes the space that pieces need, or changes nothing. A punch gives whole granules back.
func (s *space) admit(pieces []Piece, punch bool) bool {
	if !s.on {
		return true
	}
	if punch {
		from, to := (pieces[0].Range.Offset+allocation-1)/allocation*allocation, pieces[0].Range.End()/allocation*allocation
		if from < to {
			s.used -= s.allocated.count(from, to, 1)
			s.allocated.set(from, to, 0)
		}
		return true
	}
	need := uint64(0)
	for _, p := range pieces {
		if !p.Hole {
			from, to := widen(p.Range)
			need += s.allocated.count(from, to, 0)
		}
	}
	if s.used+need > s.capacity {
		return false
	}
	for _, p := range pieces {
		if !p.Hole {
			s.take(p.Range)
		}
	}
	return true
}

func (s *space) take(r volume.Range) {
	from, to := widen(r)
	s.used += s.allocated.count(from, to, 0)
	s.allocated.set(from, to, 1)
}

// reserve takes the space of a range unless that would break into what is promised.
func (s *space) reserve(r volume.Range) bool {
	if !s.on {
		return true
	}
	from, to := widen(r)
	need := s.allocated.count(from, to, 0)
	if s.used+s.kept()+need > s.capacity {
		return need == 0
	}
	s.take(r)
	return true
}

// kept is what other users of the pool may not take.
func (s *space) kept() uint64 {
	outstanding := uint64(0)
	if s.promised > s.consumed {
		outstanding = s.promised - s.consumed
	}
	return outstanding + s.arrived
}

// free is what may newly be promised.
func (s *space) free() uint64 {
	taken := s.used + s.arrived
	if !s.on || taken >= s.capacity {
		if !s.on {
			return 1 << 40
		}
		return 0
	}
	return min(s.capacity-taken, s.slice)
}

// fill lets others take the pool, but for left bytes.
func (s *space) fill(left uint64) { s.capacity = s.used + s.kept() + left }

// crash forgets promises: they end with the session.
func (s *space) crash() { s.promised, s.consumed, s.arrived = 0, 0, 0 }

// finish takes a request off the ones that came in and are not done.
func (s *space) finish(length uint64) {
	if s.arrived >= length {
		s.arrived -= length
	} else {
		s.arrived = 0
	}
}
