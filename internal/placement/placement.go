// Package placement chooses the pools of a volume's copies. Pure: it sees what pools there are and returns names and
// reasons; it acts on nothing.
//
// A copy survives what it does not share: no two copies of an extent stand on one node. Among the pools that fit,
// those of a rack and zone not yet used come first, then the one with the largest share of free space.
package placement

import (
	"cmp"
	"slices"
	"strconv"

	"samovar/internal/fault"
	"samovar/internal/volume"
)

// Pool is a candidate.
type Pool struct {
	ID         volume.PoolID
	Name       string
	Node       string
	Rack, Zone string // empty: unknown
	Online     bool
	Free       uint64 // bytes that may be given to data
	Total      uint64 // bytes
}

// Request says what is to be placed.
type Request struct {
	Volume string // name, for messages
	Copies int
	Size   uint64   // bytes, of each copy when full
	Only   []string // names of pools to use, in order; empty: any
}

// minFree is what a pool must have free to get a copy at all: volumes are sparse, so size is not reserved.
const minFree = 64 << 20

// Mirrored chooses one pool for each copy of a mirrored volume. The error names why each pool was refused.
func Mirrored(pools []Pool, q Request) ([]volume.PoolID, error) {
	op := "place volume " + q.Volume
	if q.Copies < 1 || q.Copies > volume.MaxMembers {
		return nil, fault.New(fault.Invalid, op, "a volume has 1 to "+strconv.Itoa(volume.MaxMembers)+" copies")
	}
	if len(q.Only) > 0 {
		return named(pools, q, op)
	}
	var chosen []Pool
	refused := map[string]string{}
	for len(chosen) < q.Copies {
		best := -1
		for i, p := range pools {
			why := unfit(p, chosen)
			if why != "" {
				if _, seen := refused[p.Name]; !seen || !slices.ContainsFunc(chosen, func(c Pool) bool { return c.ID == p.ID }) {
					refused[p.Name] = why
				}
				continue
			}
			if best < 0 || better(p, pools[best], chosen) {
				best = i
			}
		}
		if best < 0 {
			return nil, fault.New(fault.NoSpace, op, explain(pools, chosen, refused, q))
		}
		chosen = append(chosen, pools[best])
	}
	return ids(chosen), nil
}

func ids(pools []Pool) []volume.PoolID {
	out := make([]volume.PoolID, 0, len(pools))
	for _, p := range pools {
		out = append(out, p.ID)
	}
	return out
}

// unfit says why a pool cannot take the next copy, or nothing.
func unfit(p Pool, chosen []Pool) string {
	switch {
	case !p.Online:
		return "its node is not online"
	case p.Free < minFree:
		return "less than 64 MiB free"
	}
	for _, c := range chosen {
		if c.Node == p.Node {
			return "its node " + p.Node + " has a copy already"
		}
	}
	return ""
}

// better tells whether a is to be preferred to b for the next copy. Ties go to the lower name, so that equal inputs
// give equal answers.
func better(a, b Pool, chosen []Pool) bool {
	return cmp.Or(
		cmp.Compare(shared(a, chosen), shared(b, chosen)),
		cmp.Compare(share(b), share(a)),
		cmp.Compare(a.Name, b.Name),
	) < 0
}

// shared counts racks and zones that a copy on p would share with the chosen ones.
func shared(p Pool, chosen []Pool) int {
	n := 0
	for _, c := range chosen {
		if p.Zone != "" && p.Zone == c.Zone {
			n += 2
		}
		if p.Rack != "" && p.Rack == c.Rack {
			n++
		}
	}
	return n
}

// share is the free part of a pool, in 1/1000.
func share(p Pool) uint64 { return p.Free / max(p.Total/1000, 1) }

func explain(pools, chosen []Pool, refused map[string]string, q Request) string {
	text := "found " + strconv.Itoa(len(chosen)) + " of " + strconv.Itoa(q.Copies) + " pools on different nodes"
	if len(pools) == 0 {
		return text + ": there are no pools (samovar pool create NODE DIR --name NAME)"
	}
	names := make([]string, 0, len(refused))
	for name := range refused {
		if !slices.ContainsFunc(chosen, func(c Pool) bool { return c.Name == name }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for i, name := range names {
		if i == 0 {
			text += ": "
		} else {
			text += "; "
		}
		text += "pool " + name + ": " + refused[name]
	}
	return text
}

// named takes the pools that a person chose, if they can serve at all.
func named(pools []Pool, q Request, op string) ([]volume.PoolID, error) {
	if len(q.Only) != q.Copies {
		return nil, fault.New(fault.Invalid, op, strconv.Itoa(q.Copies)+" copies need as many pools; "+strconv.Itoa(len(q.Only))+" were named")
	}
	var chosen []Pool
	for _, name := range q.Only {
		i := slices.IndexFunc(pools, func(p Pool) bool { return p.Name == name })
		if i < 0 {
			return nil, fault.New(fault.NotFound, op, "there is no pool "+name)
		}
		if why := unfit(pools[i], chosen); why != "" {
			return nil, fault.New(fault.NoSpace, op, "pool "+name+": "+why)
		}
		chosen = append(chosen, pools[i])
	}
	return ids(chosen), nil
}
