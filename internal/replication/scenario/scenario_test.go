package scenario

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"samovar/internal/replication"
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts print into them")

// TestScripts runs every script. A script is blocks of commands, each followed by a line "----" and what it prints,
// up to an empty line.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			var r *rig
			for _, block := range strings.Split(strings.TrimSpace(string(src)), "\n\n") {
				commands, _, _ := strings.Cut(block+"\n", "----\n")
				if got.Len() > 0 {
					got.WriteString("\n")
				}
				got.WriteString(commands + "----\n")
				for _, line := range strings.Split(strings.TrimSpace(commands), "\n") {
					if r, err = run(r, line); err != nil {
						t.Fatalf("%s: %v", line, err)
					}
				}
				got.WriteString(r.out.String())
				r.out.Reset()
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got.String() != string(src) {
				t.Errorf("the script prints something else (go test -run Scripts -rewrite accepts it):\n%s", got.String())
			}
		})
	}
}

// run carries out one command.
func run(r *rig, line string) (*rig, error) {
	f := strings.Fields(line)
	if len(f) == 0 || f[0] == "#" {
		return r, nil
	}
	if f[0] == "new" { // new REPLICAS MIB
		n, _ := strconv.Atoi(f[1])
		mib, _ := strconv.Atoi(f[2])
		return newRig(n, uint64(mib)<<20), nil
	}
	switch f[0] {
	case "attach": // attach ENGINE [LOCAL]
		local := ""
		if len(f) > 2 {
			local = f[2]
		}
		r.attach(f[1], local)
	case "kill": // kill NODE: its process ends; what it wrote stays
		n := r.node(f[1])
		n.down = true
		for _, h := range r.hosts() {
			r.lose(h, n)
		}
	case "vanish": // vanish ENGINE: its process ends
		h := r.engines[f[1]]
		delete(r.engines, f[1])
		for _, l := range h.links {
			delete(l.n.engines, l.session)
			l.n.rep.Close(l.session)
		}
	case "boot":
		r.boot(r.node(f[1]))
	case "cut", "heal": // cut ENGINE NODE
		h := r.engines[f[1]]
		h.cut[f[2]] = f[0] == "cut"
		if f[0] == "cut" {
			r.lose(h, r.node(f[2]))
		}
	case "pause", "resume":
		r.engines[f[1]].paused = f[0] == "pause"
	case "store":
		r.storeDown = f[1] == "down"
	case "set": // set NODE full|failsync on|off
		n := r.node(f[1])
		if f[2] == "full" {
			n.full = f[3] == "on"
			n.rep.SetSpace(0)
		} else {
			n.failSync = f[3] == "on"
		}
	case "wait": // wait DURATION
		d, err := time.ParseDuration(f[1])
		if err != nil {
			return r, err
		}
		for end := r.now + d; r.now < end; {
			r.now += 100 * time.Millisecond
			for _, h := range r.hosts() {
				if !h.paused {
					h.eng.Tick(r.now)
				}
			}
			r.settle()
		}
	case "detach":
		r.engines[f[1]].eng.Detach()
	case "status":
		r.status(r.engines[f[1]])
	case "compare":
		r.compare()
	default: // ENGINE OP KIB KIB [STAMP] [fua]
		return r, r.request(f)
	}
	r.settle()
	return r, nil
}

func (r *rig) lose(h *host, n *node) {
	l, ok := h.links[n.pool]
	if !ok {
		return
	}
	delete(h.links, n.pool)
	delete(n.engines, l.session)
	if !n.down {
		n.rep.Close(l.session)
	}
	h.inbox = append(h.inbox, func() { h.eng.Disconnected(n.pool, l.es) })
}

func (r *rig) request(f []string) error {
	h := r.engines[f[0]]
	if h == nil || len(f) < 2 {
		return fmt.Errorf("no such engine or command: %q", f)
	}
	h.nextReq++
	h.asked[h.nextReq] = strings.Join(f[1:], " ")
	q := engine.Request{ID: h.nextReq, FUA: f[len(f)-1] == "fua"}
	if len(f) >= 4 {
		off, _ := strconv.ParseUint(f[2], 10, 64)
		n, _ := strconv.ParseUint(f[3], 10, 64)
		q.Range = volume.Range{Offset: off << 10, Length: n << 10}
	}
	switch f[1] {
	case "write":
		q.Op = replication.Write
		p := piece{from: q.Range.Offset / 512, to: q.Range.End() / 512}
		for s := p.from; s < p.to; s++ {
			p.data = append(p.data, f[4])
		}
		q.Payload = p
	case "read":
		q.Op = replication.Read
	case "zero":
		q.Op = replication.Zero
	case "flush":
		q.Op = replication.Sync
	default:
		return fmt.Errorf("unknown operation %q", f[1])
	}
	h.inbox = append(h.inbox, func() { h.eng.Submit([]engine.Request{q}) })
	r.settle()
	return nil
}

func (r *rig) status(h *host) {
	s := h.eng.Status()
	fmt.Fprintf(&r.out, "%s: %s epoch %d generation %d", h.name, s.Phase, s.Record.Epoch, s.Record.Generation)
	for _, m := range s.Members {
		fmt.Fprintf(&r.out, " %s=%s", r.pool(m.Pool).name, m.State)
		if m.OutOfSync > 0 {
			fmt.Fprintf(&r.out, "(%dK)", m.OutOfSync>>10)
		}
	}
	if s.Suspended != "" {
		fmt.Fprintf(&r.out, " suspended: %s", s.Suspended)
	}
	if s.Text != "" {
		fmt.Fprintf(&r.out, " (%s)", s.Text)
	}
	fmt.Fprintln(&r.out)
}

func (r *rig) compare() {
	equal := true
	for _, n := range r.nodes[1:] {
		for s := range r.record.Size / 512 {
			if n.sectors[s] != r.nodes[0].sectors[s] {
				fmt.Fprintf(&r.out, "%s and %s differ at sector %d: %q %q\n", r.nodes[0].name, n.name, s, r.nodes[0].sectors[s], n.sectors[s])
				equal = false
				break
			}
		}
	}
	if equal {
		fmt.Fprintln(&r.out, "all replicas are equal")
	}
}
