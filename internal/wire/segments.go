package wire

import (
	"encoding/binary"
	"fmt"

	"samovar/internal/block"
	"samovar/internal/volume"
)

// Segment is one piece of a copied range: data, or a hole that reads as zero.
type Segment struct {
	Range volume.Range
	Data  *block.Buffer // exactly Range.Length bytes; nil: a hole
}

// Segments is the payload of a Fetched: pieces in ascending order, each starting where the last one ends, so
// that nothing can be skipped by accident.
type Segments struct {
	List []Segment
}

// Release drops one reference of every data segment.
func (s *Segments) Release() {
	if s == nil {
		return
	}
	for i := range s.List {
		s.List[i].Data.Release()
	}
}

// Range is all that the segments cover together.
func (s *Segments) Range() volume.Range {
	if s == nil || len(s.List) == 0 {
		return volume.Range{}
	}
	first := s.List[0].Range.Offset
	return volume.Range{Offset: first, Length: s.List[len(s.List)-1].Range.End() - first}
}

// The table before the data.
const (
	tableHead  = 8  // count 4, zero 4
	tableEntry = 24 // offset 8, length 8, kind 4, zero 4

	segmentData = 1
	segmentHole = 2
)

// appendTable adds the table and gives the length of the data that follows, or says what is wrong.
func (s *Segments) appendTable(dst []byte) (out []byte, data uint64, wrong string) {
	if len(s.List) == 0 || len(s.List) > MaxSegments {
		return dst, 0, fmt.Sprintf("%d segments; 1 to %d may be sent", len(s.List), MaxSegments)
	}
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, uint32(len(s.List)))
	dst = le.AppendUint32(dst, 0)
	next, total := s.List[0].Range.Offset, uint64(0)
	for i := range s.List {
		g := &s.List[i]
		if wrong = g.wrong(next, &total); wrong != "" {
			return dst, 0, wrong
		}
		kind := uint32(segmentHole)
		if g.Data != nil {
			if uint64(g.Data.Len()) != g.Range.Length {
				return dst, 0, fmt.Sprintf("a segment of %d bytes has %d bytes of data", g.Range.Length, g.Data.Len())
			}
			kind = segmentData
			data += g.Range.Length
		}
		dst = le.AppendUint64(dst, g.Range.Offset)
		dst = le.AppendUint64(dst, g.Range.Length)
		dst = le.AppendUint32(dst, kind)
		dst = le.AppendUint32(dst, 0)
		next = g.Range.End()
	}
	return dst, data, ""
}

// wrong says what is wrong with the place of a segment that must start at next; total counts bytes so far.
func (g *Segment) wrong(next uint64, total *uint64) string {
	if g.Range.Length == 0 || g.Range.Length > volume.MaxRequest || g.Range.Offset > volume.MaxSize {
		return fmt.Sprintf("a segment at %d has %d bytes", g.Range.Offset, g.Range.Length)
	}
	if g.Range.Offset != next {
		return fmt.Sprintf("a segment starts at %d, the one before it ends at %d", g.Range.Offset, next)
	}
	if *total += g.Range.Length; *total > volume.MaxRequest || g.Range.End() > volume.MaxSize {
		return fmt.Sprintf("segments of more than %d bytes, or beyond %d", volume.MaxRequest, uint64(volume.MaxSize))
	}
	return ""
}

// parseTable reads entries into s without data, isData telling which need some. It says what is wrong, or "".
func (s *Segments) parseTable(table []byte, isData func(i int)) (data uint64, wrong string) {
	le := binary.LittleEndian
	total := uint64(0)
	next := le.Uint64(table)
	for i := range s.List {
		entry := table[i*tableEntry:][:tableEntry]
		g := &s.List[i]
		g.Range = volume.Range{Offset: le.Uint64(entry), Length: le.Uint64(entry[8:])}
		if wrong = g.wrong(next, &total); wrong != "" {
			return 0, wrong
		}
		kind, zero := le.Uint32(entry[16:]), le.Uint32(entry[20:])
		switch {
		case zero != 0 || kind != segmentData && kind != segmentHole:
			return 0, fmt.Sprintf("a segment of unknown kind %d, %d", kind, zero)
		case kind == segmentData:
			isData(i)
			data += g.Range.Length
		}
		next = g.Range.End()
	}
	return data, ""
}
