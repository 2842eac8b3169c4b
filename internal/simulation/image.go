package simulation

import (
	"slices"

	"samovar/internal/volume"
)

// Values of sectors. Every write of a client has a stamp of its own, above these two; a sector holds the stamp of
// the write that it came from. That says which bytes it has, since a write lands only at its own offset.
const (
	hole      = 0 // nothing stored, reads as zero
	zeroes    = 1 // stored zeroes
	firstReal = 2
)

// Piece is a part of a payload: a range of the volume and what it holds.
type Piece struct {
	Range volume.Range
	Stamp uint64 // 0 for zeroes
	Hole  bool
}

// span is a run of equal sectors: from its offset to that of the next span.
type span struct{ from, value uint64 }

// image maps every byte of [0, size) to a value, as runs.
type image struct {
	size  uint64
	spans []span
}

func newImage(size, value uint64) *image {
	return &image{size: size, spans: []span{{0, value}}}
}

func (m *image) clone() *image {
	return &image{size: m.size, spans: slices.Clone(m.spans)}
}

// at finds the span that holds offset.
func (m *image) at(offset uint64) int {
	lo, hi := 0, len(m.spans)
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if m.spans[mid].from <= offset {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

func (m *image) end(i int) uint64 {
	if i+1 < len(m.spans) {
		return m.spans[i+1].from
	}
	return m.size
}

// set gives [from, to) one value.
func (m *image) set(from, to, value uint64) {
	if from >= to {
		return
	}
	i, j := m.at(from), m.at(to-1)
	tail, last := m.end(j), m.spans[j].value
	var fresh [3]span
	n := 0
	if m.spans[i].from < from {
		fresh[n] = m.spans[i]
		n++
	}
	if n > 0 && fresh[n-1].value == value || n == 0 && i > 0 && m.spans[i-1].value == value {
		// the run before already holds the value and goes on
	} else {
		fresh[n] = span{from, value}
		n++
	}
	switch {
	case to < tail && last != value:
		fresh[n] = span{to, last}
		n++
	case to == tail && j+1 < len(m.spans) && m.spans[j+1].value == value:
		j++ // the run behind holds the value too
	}
	m.spans = slices.Replace(m.spans, i, j+1, fresh[:n]...)
}

// each calls f for every run of equal value inside [from, to).
func (m *image) each(from, to uint64, f func(from, to, value uint64)) {
	if from >= to {
		return
	}
	for i := m.at(from); i < len(m.spans) && m.spans[i].from < to; i++ {
		f(max(from, m.spans[i].from), min(to, m.end(i)), m.spans[i].value)
	}
}

// paste copies [from, to) of o into m.
func (m *image) paste(o *image, from, to uint64) {
	o.each(from, to, m.set)
}

// count sums the bytes of [from, to) that have the value.
func (m *image) count(from, to, value uint64) (bytes uint64) {
	m.each(from, to, func(a, b, v uint64) {
		if v == value {
			bytes += b - a
		}
	})
	return bytes
}

// pieces describes a range as a payload.
func (m *image) pieces(r volume.Range) []Piece {
	i := m.at(r.Offset)
	out := make([]Piece, 0, min(64, m.at(max(r.End(), 1)-1)-i+1))
	m.each(r.Offset, r.End(), func(a, b, v uint64) {
		p := Piece{Range: volume.Range{Offset: a, Length: b - a}, Stamp: v, Hole: v == hole}
		if v < firstReal {
			p.Stamp = 0
		}
		out = append(out, p)
	})
	return out
}

// difference finds the first place where two images read differently; zeroes and holes read alike.
func (m *image) difference(o *image) (at uint64, mine, theirs uint64, differ bool) {
	m.each(0, m.size, func(from, to, v uint64) {
		if differ {
			return
		}
		o.each(from, to, func(a, _, u uint64) {
			if !differ && u != v && (u >= firstReal || v >= firstReal) {
				at, mine, theirs, differ = a, v, u, true
			}
		})
	})
	return at, mine, theirs, differ
}
