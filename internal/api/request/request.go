// Package request checks what people and programs ask for, before anything acts on it. The server checks
// because it trusts nobody; the client checks the same so that a slip is told without asking a node.
//
// It knows forms and bounds that hold for every cluster: names, sizes, counts. It must not know the state of a
// cluster (whether a name is taken, whether a pool has room): that is the control plane's.
package request

import (
	"fmt"
	"path"

	"samovar/internal/fault"
	"samovar/internal/resource"
)

// Bounds of requests.
const (
	MaxName      = 63
	MaxNodeName  = 253 // nodes are named as Kubernetes and DNS name hosts
	MaxCopies    = 16
	SectorBytes  = 512
	MinExtent    = 1 << 20
	MaxExtent    = 1 << 30
	EventsLimit  = 100  // events in a list when none is asked for
	MaxEvents    = 1000 // events in a list
	MaxCallBytes = 16 << 20
)

// Name checks the name of a volume or a pool: a DNS label. The rule can be widened later and never narrowed; a
// name stands in paths, NBD exports and URIs, and '@' is kept for snapshots.
func Name(object, name string) error {
	if !label(name, MaxName, false) {
		return fault.New(fault.Invalid, fmt.Sprintf("%s %q", object, clip(name)),
			"a name has 1 to 63 of a-z, 0-9 and '-', and begins and ends with a letter or digit, like tea or db-01")
	}
	return nil
}

// NodeName checks the name of a node: like a volume's, with dots and longer.
func NodeName(name string) error {
	if !label(name, MaxNodeName, true) {
		return fault.New(fault.Invalid, fmt.Sprintf("node %q", clip(name)),
			"a node's name has 1 to 253 of a-z, 0-9, '-' and '.', and begins and ends with a letter or digit, like n1 or n1.example.com")
	}
	return nil
}

func clip(name string) string {
	if len(name) > MaxName+10 {
		return name[:MaxName] + "..."
	}
	return name
}

func label(s string, longest int, dots bool) bool {
	if s == "" || len(s) > longest {
		return false
	}
	inner := false // whether a character that may not end a label came last
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
			inner = false
		case c == '-' && i > 0 && s[i-1] != '.':
			inner = true
		case c == '.' && dots && i > 0 && !inner:
			inner = true
		default:
			return false
		}
	}
	return !inner
}

// Volume checks the request for a new volume.
func Volume(v resource.NewVolume) error {
	if err := Name("volume", v.Name); err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return fault.New(fault.Invalid, "volume "+v.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case v.Size == 0:
		return bad("the size must be above zero")
	case v.Size%SectorBytes != 0:
		return bad("a size is a multiple of 512 bytes; %d is not, the next one is %d", v.Size, v.Size/SectorBytes*SectorBytes+SectorBytes)
	case v.Copies < 1 || v.Copies > MaxCopies:
		return bad("a volume has 1 to %d replicas, not %d", MaxCopies, v.Copies)
	case v.ExtentSize != 0 && (v.ExtentSize < MinExtent || v.ExtentSize > MaxExtent || v.ExtentSize&(v.ExtentSize-1) != 0):
		return bad("an extent size is a power of two from 1MiB to 1GiB, not %d bytes", v.ExtentSize)
	case len(v.Pools) != 0 && len(v.Pools) != v.Copies:
		return bad("%d replicas need %d pools; named: %d", v.Copies, v.Copies, len(v.Pools))
	}
	seen := map[string]bool{}
	for _, pool := range v.Pools {
		if err := Name("pool", pool); err != nil {
			return err
		}
		if seen[pool] {
			return bad("pool %s is named twice; every replica needs its own", pool)
		}
		seen[pool] = true
	}
	return nil
}

// Pool checks the request for a new pool.
func Pool(p resource.NewPool) error {
	if err := Name("pool", p.Name); err != nil {
		return err
	}
	if err := NodeName(p.Node); err != nil {
		return err
	}
	if !path.IsAbs(p.Dir) || path.Clean(p.Dir) != p.Dir {
		return fault.New(fault.Invalid, "pool "+p.Name,
			fmt.Sprintf("the directory %q must be a whole path on node %s, like /srv/samovar/ssd1", clip(p.Dir), p.Node))
	}
	return nil
}

// Attach checks the request for an attachment.
func Attach(a resource.Attach) error {
	if a.Node == "" {
		return nil
	}
	return NodeName(a.Node)
}

// Call checks the name of a call from node to node.
func Call(name string) error { return Name("call", name) }
