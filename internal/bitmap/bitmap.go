// Package bitmap is a sparse set of block numbers, for change records and catch-up. It is a plain value without
// locks, and reaches no os, sync or fmt, so that the pure replication core may use it; the compressed library
// that the project would use elsewhere pulls those in.
//
// Content is kept in pages of 4,096 bits; an absent page is empty. The serial form, used on disk and wire
// (inside a frame that carries magic, version, length and checksum), is a sequence of runs: uvarint gap from the
// end of the last run, uvarint length of the run, both in blocks.
package bitmap

import (
	"math/bits"
	"slices"

	"samovar/internal/fault"
)

const (
	pageWords = 64
	pageBits  = pageWords * 64
)

// Bitmap is a set of block numbers. The zero value is empty and ready.
type Bitmap struct {
	pages map[uint64]*[pageWords]uint64
	count uint64
}

// Count is how many blocks are in the set.
func (b *Bitmap) Count() uint64 {
	if b == nil {
		return 0
	}
	return b.count
}

// Empty tells whether the set is empty; so is a nil one.
func (b *Bitmap) Empty() bool { return b == nil || b.count == 0 }

// Has tells whether block n is in the set.
func (b *Bitmap) Has(n uint64) bool {
	if b == nil {
		return false
	}
	p := b.pages[n/pageBits]
	return p != nil && p[n%pageBits/64]&(1<<(n%64)) != 0
}

// eachWord calls f for every word that holds some of blocks [from, to), with the mask of those blocks.
func eachWord(from, to uint64, f func(page, word uint64, mask uint64)) {
	for from < to {
		end := min(from&^63+64, to)
		mask := ^uint64(0) << (from % 64)
		if end%64 != 0 {
			mask &= 1<<(end%64) - 1
		}
		f(from/pageBits, from%pageBits/64, mask)
		from = end
	}
}

// Add puts blocks [from, to) into the set.
func (b *Bitmap) Add(from, to uint64) {
	if b.pages == nil {
		b.pages = map[uint64]*[pageWords]uint64{}
	}
	eachWord(from, to, func(page, word, mask uint64) {
		p := b.pages[page]
		if p == nil {
			p = new([pageWords]uint64)
			b.pages[page] = p
		}
		b.count += uint64(bits.OnesCount64(mask &^ p[word]))
		p[word] |= mask
	})
}

// Remove takes blocks [from, to) out of the set.
func (b *Bitmap) Remove(from, to uint64) {
	if b == nil {
		return
	}
	eachWord(from, to, func(page, word, mask uint64) {
		if p := b.pages[page]; p != nil {
			b.count -= uint64(bits.OnesCount64(mask & p[word]))
			p[word] &^= mask
			if *p == ([pageWords]uint64{}) {
				delete(b.pages, page)
			}
		}
	})
}

// Any tells whether some block of [from, to) is in the set.
func (b *Bitmap) Any(from, to uint64) bool {
	if b.Empty() {
		return false
	}
	found := false
	eachWord(from, to, func(page, word, mask uint64) {
		if p := b.pages[page]; p != nil && p[word]&mask != 0 {
			found = true
		}
	})
	return found
}

// Union adds every block of o, which may be nil.
func (b *Bitmap) Union(o *Bitmap) {
	o.Runs(func(from, to uint64) bool { b.Add(from, to); return true })
}

// Clone copies the set.
func (b *Bitmap) Clone() *Bitmap {
	c := &Bitmap{}
	c.Union(b)
	return c
}

// runsUpTo counts runs, at most one more than limit.
func (b *Bitmap) runsUpTo(limit int) (n int) {
	b.Runs(func(uint64, uint64) bool { n++; return n <= limit })
	return n
}

// Within returns a set of at most limit runs that holds every block of b and none at or above end: b itself, or a
// superset of coarser granules. It bounds the serial form of a very scattered set.
func (b *Bitmap) Within(limit int, end uint64) *Bitmap {
	for shift := 1; b.runsUpTo(limit) > limit; shift++ {
		coarse, granule := &Bitmap{}, uint64(1)<<shift
		b.Runs(func(from, to uint64) bool {
			coarse.Add(from&^(granule-1), min((to+granule-1)&^(granule-1), max(end, to)))
			return true
		})
		b = coarse
	}
	return b
}

// Clear empties the set.
func (b *Bitmap) Clear() { b.pages, b.count = nil, 0 }

// Runs calls f for every maximal run [from, to) in ascending order until f returns false.
func (b *Bitmap) Runs(f func(from, to uint64) bool) {
	if b.Empty() {
		return
	}
	keys := make([]uint64, 0, len(b.pages))
	for k := range b.pages {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var from, to uint64 // the open run; from == to: none
	for _, k := range keys {
		for w, word := range b.pages[k] {
			base := k*pageBits + uint64(w)*64
			for word != 0 {
				start := uint64(bits.TrailingZeros64(word))
				length := uint64(bits.TrailingZeros64(^(word >> start)))
				if from == to || base+start != to {
					if from != to && !f(from, to) {
						return
					}
					from = base + start
				}
				to = base + start + length
				if start+length == 64 {
					break
				}
				word &= ^uint64(0) << (start + length)
			}
		}
	}
	if from != to {
		f(from, to)
	}
}

// Next finds the first run at or behind block n, cut to at most limit blocks.
func (b *Bitmap) Next(n, limit uint64) (from, to uint64, ok bool) {
	if b.Empty() {
		return 0, 0, false
	}
	first, found := uint64(0), false
	page := n / pageBits
	if p := b.pages[page]; p != nil {
		first, found = nextInPage(p, page*pageBits, n)
	}
	if !found {
		best, any := uint64(0), false
		for k := range b.pages {
			if k > page && (!any || k < best) {
				best, any = k, true
			}
		}
		if !any {
			return 0, 0, false
		}
		first, found = nextInPage(b.pages[best], best*pageBits, best*pageBits)
		if !found {
			return 0, 0, false
		}
	}
	for to = first + 1; to < first+limit && b.Has(to); to++ {
	}
	return first, to, true
}

func nextInPage(p *[pageWords]uint64, base, n uint64) (uint64, bool) {
	for w := (n - base) / 64; w < pageWords; w++ {
		word := p[w]
		if start := base + w*64; start < n {
			word &= ^uint64(0) << (n - start)
		}
		if word != 0 {
			return base + w*64 + uint64(bits.TrailingZeros64(word)), true
		}
	}
	return 0, false
}

// Append adds the serial form to dst.
func (b *Bitmap) Append(dst []byte) []byte {
	last := uint64(0)
	b.Runs(func(from, to uint64) bool {
		dst = appendUvarint(dst, from-last)
		dst = appendUvarint(dst, to-from)
		last = to
		return true
	})
	return dst
}

func appendUvarint(dst []byte, v uint64) []byte {
	for v >= 0x80 {
		dst = append(dst, byte(v)|0x80)
		v >>= 7
	}
	return append(dst, byte(v))
}

func uvarint(src []byte) (v uint64, n int) {
	for i, c := range src {
		if i == 10 || i == 9 && c > 1 {
			return 0, 0
		}
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return v, i + 1
		}
	}
	return 0, 0
}

// Parse reads the serial form of a set whose blocks are all below limit.
func Parse(src []byte, limit uint64) (*Bitmap, error) {
	b, next := &Bitmap{}, uint64(0)
	for len(src) > 0 {
		gap, n := uvarint(src)
		length, m := uvarint(src[n:])
		if n == 0 || m == 0 || length == 0 || gap > limit || length > limit || next+gap+length > limit {
			return nil, fault.New(fault.Corrupt, "parse bitmap", "a run is cut off or lies outside the volume")
		}
		b.Add(next+gap, next+gap+length)
		next += gap + length
		src = src[n+m:]
	}
	return b, nil
}
