package placement

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"samovar/internal/fault"
	"samovar/internal/volume"
)

func pool(i int, node string, free uint64) Pool {
	return Pool{ID: volume.PoolID{byte(i + 1)}, Name: fmt.Sprintf("p%02d", i), Node: node, Online: true, Free: free, Total: 1 << 40}
}

// The naive twin: whether any choice on different nodes exists at all.
func TestPlacesWheneverPossible(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var pools []Pool
		nodes := map[string]bool{}
		for i := range rng.IntN(8) {
			p := pool(i, fmt.Sprintf("n%d", rng.IntN(5)), rng.Uint64N(1<<40))
			p.Online = rng.IntN(4) > 0
			p.Rack = []string{"", "r1", "r2"}[rng.IntN(3)]
			if rng.IntN(4) == 0 {
				p.Free = 1 << 20
			}
			if p.Online && p.Free >= minFree {
				nodes[p.Node] = true
			}
			pools = append(pools, p)
		}
		copies := 1 + rng.IntN(4)
		got, err := Mirrored(pools, Request{Volume: "tea", Copies: copies})
		if (err == nil) != (len(nodes) >= copies) {
			t.Fatalf("seed %d: %d copies on nodes %v: %v", seed, copies, nodes, err)
		}
		if err != nil {
			if !fault.Is(err, fault.NoSpace) {
				t.Fatalf("seed %d: kind of %v", seed, err)
			}
			continue
		}
		used := map[string]bool{}
		for _, id := range got {
			for _, p := range pools {
				if p.ID == id {
					if used[p.Node] || !p.Online || p.Free < minFree {
						t.Fatalf("seed %d: bad choice %+v", seed, p)
					}
					used[p.Node] = true
				}
			}
		}
		if len(used) != copies {
			t.Fatalf("seed %d: %d pools for %d copies", seed, len(used), copies)
		}
	}
}

func TestPrefersOtherRacks(t *testing.T) {
	a, b, c := pool(0, "n1", 900<<30), pool(1, "n2", 800<<30), pool(2, "n3", 100<<30)
	a.Rack, b.Rack, c.Rack = "r1", "r1", "r2"
	got, err := Mirrored([]Pool{a, b, c}, Request{Volume: "tea", Copies: 2})
	if err != nil || got[0] != a.ID || got[1] != c.ID {
		t.Fatal(got, err)
	}
}

func TestErrorsNameEveryPool(t *testing.T) {
	full, off := pool(1, "n2", 0), pool(2, "n3", 1<<30)
	off.Online = false
	_, err := Mirrored([]Pool{pool(0, "n1", 1<<40), full, off}, Request{Volume: "tea", Copies: 2})
	for _, want := range []string{"found 1 of 2", "pool p01: less than 64 MiB free", "pool p02: its node is not online"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	_, err = Mirrored([]Pool{full}, Request{Volume: "tea", Copies: 1, Only: []string{"p01"}})
	if !fault.Is(err, fault.NoSpace) {
		t.Error(err)
	}
	_, err = Mirrored(nil, Request{Volume: "tea", Copies: 1, Only: []string{"x"}})
	if !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}
