package bitmap

import (
	"math/rand/v2"
	"testing"
)

// The naive twin: a map of block numbers.
func TestAgainstNaiveTwin(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const limit = 20000
		b, twin := &Bitmap{}, map[uint64]bool{}
		for range 60 {
			from := rng.Uint64N(limit)
			to := min(limit, from+rng.Uint64N(1+rng.Uint64N(9000)))
			add := rng.IntN(3) > 0
			if add {
				b.Add(from, to)
			} else {
				b.Remove(from, to)
			}
			for n := from; n < to; n++ {
				if add {
					twin[n] = true
				} else {
					delete(twin, n)
				}
			}
			lo := rng.Uint64N(limit)
			hi := min(limit, lo+rng.Uint64N(300))
			any := false
			for n := lo; n < hi; n++ {
				any = any || twin[n]
			}
			if b.Any(lo, hi) != any {
				t.Fatalf("seed %d: Any(%d,%d)=%v", seed, lo, hi, !any)
			}
			from, to, ok := b.Next(lo, 50)
			want, wantOK := lo, false
			for ; want < limit; want++ {
				if twin[want] {
					wantOK = true
					break
				}
			}
			if ok != wantOK || ok && from != want {
				t.Fatalf("seed %d: Next(%d)=%d,%v want %d,%v", seed, lo, from, ok, want, wantOK)
			}
			for n := from; n < to; n++ {
				if !twin[n] {
					t.Fatalf("seed %d: Next run holds %d", seed, n)
				}
			}
		}
		if b.Count() != uint64(len(twin)) {
			t.Fatalf("seed %d: count %d, want %d", seed, b.Count(), len(twin))
		}
		last, seen := uint64(0), uint64(0)
		b.Runs(func(from, to uint64) bool {
			if from >= to || seen > 0 && from <= last {
				t.Fatalf("seed %d: run [%d,%d) after %d", seed, from, to, last)
			}
			for n := from; n < to; n++ {
				if !twin[n] || !b.Has(n) {
					t.Fatalf("seed %d: run holds %d", seed, n)
				}
			}
			seen += to - from
			last = to
			return true
		})
		if seen != b.Count() {
			t.Fatalf("seed %d: runs cover %d of %d", seed, seen, b.Count())
		}
		again, err := Parse(b.Append(nil), limit)
		if err != nil {
			t.Fatal(err)
		}
		if string(again.Append(nil)) != string(b.Append(nil)) || again.Count() != b.Count() {
			t.Fatalf("seed %d: serial form changed", seed)
		}
	}
}

func TestWithin(t *testing.T) {
	const end = 10001
	b := &Bitmap{}
	for n := uint64(0); n < end; n += 3 {
		b.Add(n, n+1)
	}
	for _, limit := range []int{1, 7, 100, 2000, 5000} {
		c := b.Within(limit, end)
		if n := c.runsUpTo(1 << 30); n > limit {
			t.Errorf("%d runs, want at most %d", n, limit)
		}
		b.Runs(func(from, to uint64) bool {
			for n := from; n < to; n++ {
				if !c.Has(n) {
					t.Errorf("limit %d: block %d is missing", limit, n)
				}
			}
			return true
		})
		if _, _, ok := c.Next(end, 1); ok {
			t.Errorf("limit %d: a block beyond the end", limit)
		}
	}
	if b.Within(5000, end) != b {
		t.Error("a set within the limit was copied")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1})
	f.Fuzz(func(t *testing.T, src []byte) {
		b, err := Parse(src, 1<<16)
		if err != nil {
			return
		}
		b.Runs(func(from, to uint64) bool {
			if to > 1<<16 {
				t.Fatalf("run [%d,%d) outside", from, to)
			}
			return true
		})
	})
}
