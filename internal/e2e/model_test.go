package e2e

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
)

const sectorBytes = 512

// model knows what each sector may hold. Times are counted in acknowledgements.
//
//	never written | flushed f | acknowledged a | a' | unknown u | u'
//	                └── after a loss of power: any ─────────────┘
//	                                         └─ else: one of these ─┘
//
// A read that finds one of several possible values settles the matter: later reads must find the same.
type model struct {
	from    uint64 // sector of the volume at which it begins
	sectors [][]entry
	busy    []bool
	number  uint64          // of the last write
	acks    uint64          // acknowledgements so far
	flushed uint64          // those up to here are on stable storage
	never   map[uint64]bool // writes that were seen not to have happened
}

// entry is one write to a sector.
type entry struct {
	number uint64 // 0: never written
	zero   bool   // it reads as zeroes
	acked  uint64 // when it was acknowledged; 0: it may have happened or not
	stable bool   // acknowledged as on stable storage by itself
}

func newModel(from, size uint64) *model {
	n := size / sectorBytes
	return &model{from: from / sectorBytes, sectors: make([][]entry, n), busy: make([]bool, n), never: map[uint64]bool{}}
}

// take reserves sectors for one request.
func (m *model) take(first, n uint64) bool {
	if slices.Contains(m.busy[first:first+n], true) {
		return false
	}
	m.mark(first, n, true)
	return true
}

func (m *model) give(first, n uint64) { m.mark(first, n, false) }

func (m *model) mark(first, n uint64, busy bool) {
	for i := first; i < first+n; i++ {
		m.busy[i] = busy
	}
}

// begin notes a write that may happen from now on.
func (m *model) begin(first, n uint64, zero bool) uint64 {
	m.number++
	for i := first; i < first+n; i++ {
		if m.sectors[i] == nil {
			m.sectors[i] = []entry{{zero: true, stable: true, acked: 1}}
		}
		m.sectors[i] = append(m.sectors[i][m.floor(i):], entry{number: m.number, zero: zero})
	}
	return m.number
}

// floor is the last entry of a sector that no crash may take back.
func (m *model) floor(i uint64) int {
	for k, e := range slices.Backward(m.sectors[i]) {
		if e.acked > 0 && (e.stable || e.acked <= m.flushed) {
			return k
		}
	}
	return 0
}

// acknowledge notes that a write happened.
func (m *model) acknowledge(first, n, number uint64, stable bool) {
	m.acks++
	for i := first; i < first+n; i++ {
		s := m.sectors[i]
		if e := &s[len(s)-1]; e.number == number {
			e.acked, e.stable = m.acks, stable
		}
	}
}

// refuse notes that a write did not happen and never will.
func (m *model) refuse(first, n, number uint64) {
	for i := first; i < first+n; i++ {
		s := m.sectors[i]
		if s[len(s)-1].number == number {
			m.sectors[i] = s[:len(s)-1]
		}
	}
}

// check compares what was read from first on with what may be there, and settles it.
func (m *model) check(first uint64, data []byte, lossy bool) error {
	var wrong []error
	for k := range uint64(len(data)) / sectorBytes {
		if err := m.checkSector(first+k, data[k*sectorBytes:][:sectorBytes], lossy); err != nil {
			if wrong = append(wrong, err); len(wrong) == 3 {
				break
			}
		}
	}
	return errors.Join(wrong...)
}

func (m *model) checkSector(i uint64, data []byte, lossy bool) error {
	number, zero, err := parse(data, m.from+i)
	if err != nil {
		return fmt.Errorf("sector %d: %w, want %s", m.from+i, err, describe(m.sectors[i]))
	}
	s := m.sectors[i]
	if s == nil {
		if !zero {
			return fmt.Errorf("sector %d: write %d, was never written", m.from+i, number)
		}
		return nil
	}
	lowest := m.floor(i)
	if !lossy {
		for k, e := range s {
			if e.acked > 0 {
				lowest = k
			}
		}
	}
	for k := len(s) - 1; k >= lowest; k-- {
		if e := &s[k]; zero && e.zero || !zero && !e.zero && e.number == number {
			if e.acked == 0 {
				m.acks++
				e.acked = m.acks
			}
			for _, later := range s[k+1:] {
				m.never[later.number] = true
			}
			m.sectors[i] = s[:k+1]
			return nil
		}
	}
	return fmt.Errorf("sector %d: found write %d (zero %t), want from entry %d on of %s", m.from+i, number, zero, lowest, describe(s))
}

func describe(s []entry) string {
	text := "["
	for _, e := range s {
		text += fmt.Sprintf(" %d", e.number)
		if e.zero {
			text += "(zero)"
		}
		if e.acked == 0 {
			text += "(unknown)"
		}
	}
	return text + " ]"
}

const sectorMagic = 0x53414d4f5641522e // "SAMOVAR."

// stamp fills a sector so that every byte of it tells which write it is from and where it belongs.
func stamp(b []byte, number, sector uint64) {
	binary.LittleEndian.PutUint64(b, sectorMagic)
	binary.LittleEndian.PutUint64(b[8:], number)
	binary.LittleEndian.PutUint64(b[16:], sector)
	for i := 24; i < sectorBytes; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], (number<<32^sector)*0x9e3779b97f4a7c15+uint64(i))
	}
}

// parse reads a stamp.
func parse(b []byte, sector uint64) (number uint64, zero bool, err error) {
	var want [sectorBytes]byte
	if string(b) == string(want[:]) {
		return 0, true, nil
	}
	number = binary.LittleEndian.Uint64(b[8:])
	stamp(want[:], number, sector)
	if string(b) != string(want[:]) {
		at := binary.LittleEndian.Uint64(b[16:])
		return 0, false, fmt.Errorf("torn or foreign content %x... (write %d of sector %d?)", b[:24], number, at)
	}
	return number, false, nil
}

func indented(v any) string {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// The model itself is tested: a test that cannot fail shows nothing.
func TestModelFindsWhatIsWrong(t *testing.T) {
	sector := func(number uint64) []byte {
		b := make([]byte, sectorBytes)
		if number > 0 {
			stamp(b, number, 0)
		}
		return b
	}
	fresh := func() *model {
		m := newModel(0, sectorBytes)
		m.acknowledge(0, 1, m.begin(0, 1, false), false) // 1
		m.flushed = m.acks
		m.acknowledge(0, 1, m.begin(0, 1, false), false) // 2
		m.begin(0, 1, false)                             // 3, unknown
		return m
	}
	for _, c := range []struct {
		number uint64
		lossy  bool
		ok     bool
	}{{0, false, false}, {0, true, false}, {1, false, false}, {1, true, true}, {2, false, true}, {3, false, true}, {3, true, true}, {4, true, false}} {
		if err := fresh().check(0, sector(c.number), c.lossy); (err == nil) != c.ok {
			t.Errorf("write %d, lossy %t: %v", c.number, c.lossy, err)
		}
	}
	m := fresh()
	if err := errors.Join(m.check(0, sector(2), false), m.check(0, sector(2), false)); err != nil {
		t.Error(err)
	}
	if m.check(0, sector(3), false) == nil {
		t.Error("a value that was settled changed, and nobody noticed")
	}
	torn := sector(2)
	torn[300]++
	if fresh().check(0, torn, true) == nil {
		t.Error("a torn sector was taken")
	}
}
