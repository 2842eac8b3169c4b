package simulation

import (
	"math/rand/v2"
	"testing"
)

// The naive twin: an array of values.
func TestImageAgainstNaiveTwin(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const size = 64
		m, twin := newImage(size, 0), [size]uint64{}
		for range 80 {
			from := rng.Uint64N(size)
			to := from + rng.Uint64N(size-from+1)
			value := rng.Uint64N(4)
			m.set(from, to, value)
			for i := from; i < to; i++ {
				twin[i] = value
			}
			lo := rng.Uint64N(size)
			hi := lo + rng.Uint64N(size-lo+1)
			next := lo
			m.each(lo, hi, func(a, b, v uint64) {
				if a != next || b <= a {
					t.Fatalf("seed %d: run [%d,%d) after %d", seed, a, b, next)
				}
				for ; next < b; next++ {
					if twin[next] != v {
						t.Fatalf("seed %d: at %d: %d, want %d", seed, next, v, twin[next])
					}
				}
			})
			if next != hi && lo != hi {
				t.Fatalf("seed %d: runs end at %d of %d", seed, next, hi)
			}
			for i := 1; i < len(m.spans); i++ {
				if m.spans[i].value == m.spans[i-1].value || m.spans[i].from <= m.spans[i-1].from {
					t.Fatalf("seed %d: spans not minimal: %v", seed, m.spans)
				}
			}
		}
	}
}

func TestDifference(t *testing.T) {
	a, b := newImage(4096, hole), newImage(4096, zeroes)
	if _, _, _, differ := a.difference(b); differ {
		t.Fatal("holes and zeroes read alike")
	}
	a.set(512, 1024, 7)
	if at, mine, theirs, differ := a.difference(b); !differ || at != 512 || mine != 7 || theirs != zeroes {
		t.Fatal(at, mine, theirs, differ)
	}
	b.set(512, 1024, 7)
	if _, _, _, differ := a.difference(b); differ {
		t.Fatal("equal again")
	}
}
