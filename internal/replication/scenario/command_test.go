package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/replication/engine"
	"samovar/internal/replication/replica"
	"samovar/internal/volume"
)

// Times and places are immediate: a command and all that follows from it have happened before the next one. Only
// "wait" lets time pass.
//
//	new REPLICAS MIB [LOGLIMIT]      a volume, replicas a, b, c ...; the log names at most LOGLIMIT regions (128)
//	options NAME=VALUE ...           of engines attached later: slowafter, slowfor, copydeadline, syncinterval, copyblocks, ioerror
//	attach ENGINE [LOCAL]            starts an engine
//	detach, pause, resume ENGINE     pause is SIGSTOP
//	vanish ENGINE                    its process ends
//	kill, power, boot NODE           kill: the process ends; power: and what was not synced is lost
//	snapshot, rollback NODE          rollback: of a node that is down
//	cut, heal ENGINE|NODE NODE       between two nodes it is copies that fail
//	break ENGINE NODE                ends the session; a new one may be made at once
//	refuse ENGINE NODE               the replica refuses the engine's session, naming the engine's own fence
//	hold NODE OP ..., release NODE [OP ...]
//	fail NODE OP on|off|once         see diskOps
//	full NODE on|off
//	store down|up|hold|release       hold: changes are made, answers stay away until release
//	store save|restore               of the record
//	wait DURATION
//	count NODE OP|sessions           how many since the last count
//	status ENGINE, compare [NODE NODE], pending ENGINE
//	ENGINE write|read|zero|punch|flush KIB KIB [STAMP] [fua]
//	ENGINE series TIMES STEPKIB write|read|zero ...

// run carries out one command.
func run(r *rig, line string) (*rig, error) {
	f := strings.Fields(line)
	if len(f) == 0 || f[0] == "#" {
		return r, nil
	}
	if f[0] == "new" {
		logLimit := 128
		if len(f) > 3 {
			logLimit = number(f[3])
		}
		return newRig(number(f[1]), uint64(number(f[2]))<<20, logLimit), nil
	}
	r.stuck = false
	err := r.command(f)
	r.settle()
	return r, err
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

func (r *rig) command(f []string) error {
	if h := r.engines[f[0]]; h != nil {
		return r.request(h, f)
	}
	var h *host
	var n *node
	if len(f) > 1 {
		h, n = r.engines[f[1]], r.node(f[1])
	}
	switch {
	case f[0] == "attach":
		r.attach(f[1], strings.Join(f[2:], ""))
	case f[0] == "options":
		return r.setOptions(f[1:])
	case f[0] == "store":
		return r.store(f[1])
	case f[0] == "wait":
		return r.wait(f[1])
	case f[0] == "compare":
		r.compare(f[1:])
	case f[0] == "cut" || f[0] == "heal":
		r.cut(h, n, r.node(f[2]), f[0] == "cut")
	case h != nil:
		return r.toEngine(h, f)
	case n != nil:
		return r.toNode(n, f)
	default:
		return fmt.Errorf("no such engine, replica or command: %q", f)
	}
	return nil
}

func (r *rig) toEngine(h *host, f []string) error {
	switch f[0] {
	case "vanish":
		delete(r.engines, h.name)
		for _, l := range h.links {
			delete(l.n.engines, l.session)
			l.n.rep.Close(l.session)
		}
	case "break":
		r.lose(h, r.node(f[2]))
	case "refuse":
		n := r.node(f[2])
		record := h.eng.Record()
		h.eng.Receive(n.pool, h.links[n.pool].es, replication.Message{
			Kind: replication.Refuse, Status: fault.Fenced, Fence: record.Fence(), Volume: record.Volume, Pool: n.pool,
			Text: "a newer engine has fenced this replica",
		})
	case "pause", "resume":
		h.paused = f[0] == "pause"
	case "detach":
		h.eng.Detach()
	case "status":
		r.status(h)
	case "pending":
		for _, id := range slices.Sorted(maps.Keys(h.asked)) {
			fmt.Fprintf(&r.out, "%s: %s: no answer yet\n", h.name, h.asked[id])
		}
	default:
		return fmt.Errorf("not for an engine: %q", f)
	}
	return nil
}

func (r *rig) toNode(n *node, f []string) error {
	var ops []replica.DiskOp
	for _, name := range f[2:] {
		ops = append(ops, diskOps[name]...)
	}
	switch f[0] {
	case "kill", "power":
		n.down = true
		for _, h := range r.hosts() {
			r.lose(h, n)
		}
		if f[0] == "power" {
			n.medium.losePower()
		}
	case "boot":
		r.boot(n)
	case "snapshot":
		n.medium.snapshot()
	case "rollback":
		n.medium.rollBack()
	case "hold":
		for _, op := range ops {
			n.medium.hold[op] = true
		}
	case "release":
		if len(ops) == 0 {
			ops = slices.Collect(maps.Keys(n.medium.hold))
		}
		n.medium.release(ops, n.rep.Done)
	case "fail":
		for _, op := range ops {
			n.medium.fail[op] = map[string]int{"on": -1, "once": 1}[f[3]]
		}
	case "full":
		n.medium.full = f[2] == "on"
		n.rep.SetSpace(n.medium.space())
	case "count":
		r.count(n, f[2], ops)
	default:
		return fmt.Errorf("not for a replica: %q", f)
	}
	return nil
}

func (r *rig) count(n *node, what string, ops []replica.DiskOp) {
	total := 0
	if what == "sessions" {
		total, n.opened = n.opened, 0
	}
	for _, op := range ops {
		total += n.medium.count[op]
		n.medium.count[op] = 0
	}
	fmt.Fprintf(&r.out, "%s: %s: %d\n", n.name, what, total)
}

// cut separates an engine from a replica, or two replicas from each other.
func (r *rig) cut(h *host, n, to *node, cut bool) {
	if h == nil {
		r.noCopies[[2]*node{n, to}], r.noCopies[[2]*node{to, n}] = cut, cut
		return
	}
	h.cut[to.name] = cut
	if cut {
		r.lose(h, to)
	}
}

func (r *rig) setOptions(settings []string) error {
	o := &r.options
	durations := map[string]*time.Duration{
		"slowafter": &o.SlowAfter, "slowfor": &o.SlowFor, "copydeadline": &o.CopyDeadline, "syncinterval": &o.SyncInterval,
	}
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		d, err := time.ParseDuration(value)
		switch {
		case name == "copyblocks":
			o.CopyBlocks = uint64(number(value))
		case name == "ioerror":
			o.FailStopped = value == "on"
		case durations[name] == nil || err != nil:
			return fmt.Errorf("no such option: %q", s)
		default:
			*durations[name] = d
		}
	}
	return nil
}

func (r *rig) store(what string) error {
	switch what {
	case "down", "up":
		r.storeDown = what == "down"
	case "hold":
		r.keep = true
	case "release":
		r.keep = false
		for _, answer := range r.answers {
			answer()
		}
		r.answers = nil
	case "save":
		r.saved = r.record.Clone()
		r.saved.Revision = r.revision
	case "restore":
		r.record, r.revision = r.saved.Clone(), r.saved.Revision
	default:
		return fmt.Errorf("the store does not know %q", what)
	}
	return nil
}

func (r *rig) wait(duration string) error {
	d, err := time.ParseDuration(duration)
	for end := r.now + d; r.now < end && !r.stuck; {
		r.now += 100 * time.Millisecond
		for _, h := range r.hosts() {
			if !h.paused {
				h.eng.Tick(r.now)
			}
		}
		r.settle()
	}
	return err
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

// request submits one request, or a series of the same at other places, of which only the number of answers is told.
func (r *rig) request(h *host, f []string) error {
	if len(f) < 2 || f[1] != "series" {
		return r.submit(h, f[1:], 0)
	}
	h.series = map[string]int{}
	times, step := number(f[2]), uint64(number(f[3]))<<10
	for i := range uint64(times) {
		if err := r.submit(h, f[4:], i*step); err != nil {
			return err
		}
	}
	fmt.Fprintf(&r.out, "%s: %s:", h.name, strings.Join(f[1:], " "))
	left := times
	for _, status := range slices.Sorted(maps.Keys(h.series)) {
		fmt.Fprintf(&r.out, " %d %s", h.series[status], status)
		left -= h.series[status]
	}
	if left > 0 {
		fmt.Fprintf(&r.out, " %d not answered", left)
	}
	fmt.Fprintln(&r.out)
	h.series = nil
	return nil
}

var requestKinds = map[string]replication.Kind{
	"write": replication.Write, "read": replication.Read, "zero": replication.Zero, "punch": replication.Zero,
	"flush": replication.Sync,
}

func (r *rig) submit(h *host, f []string, shift uint64) error {
	kind, ok := requestKinds[f[0]]
	if !ok {
		return fmt.Errorf("unknown operation %q", f[0])
	}
	if shift > 0 {
		f = slices.Clone(f)
		f[1] = strconv.Itoa(number(f[1]) + int(shift>>10))
	}
	h.nextReq++
	h.asked[h.nextReq] = strings.Join(f, " ")
	q := engine.Request{ID: h.nextReq, Op: kind, FUA: f[len(f)-1] == "fua", Punch: f[0] == "punch"}
	if len(f) >= 3 {
		q.Range = volume.Range{Offset: uint64(number(f[1])) << 10, Length: uint64(number(f[2])) << 10}
	}
	if kind == replication.Write {
		p := piece{from: q.Range.Offset / volume.SectorSize, to: q.Range.End() / volume.SectorSize}
		p.data = slices.Repeat([]string{f[3]}, int(p.to-p.from))
		q.Payload = p
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
	if s.Doubtful > 0 {
		fmt.Fprintf(&r.out, " doubtful: %dK", s.Doubtful>>10)
	}
	if s.Suspended != "" {
		fmt.Fprintf(&r.out, " suspended: %s", s.Suspended)
	}
	if s.Text != "" {
		fmt.Fprintf(&r.out, " (%s)", s.Text)
	}
	fmt.Fprintln(&r.out)
}

func (r *rig) compare(names []string) {
	nodes := r.nodes
	if len(names) > 0 {
		nodes = []*node{r.node(names[0]), r.node(names[1])}
	}
	equal := true
	for _, n := range nodes[1:] {
		for s := range r.record.Size / volume.SectorSize {
			if mine, theirs := nodes[0].medium.sectors[s], n.medium.sectors[s]; mine != theirs {
				fmt.Fprintf(&r.out, "%s and %s differ at sector %d: %q %q\n", nodes[0].name, n.name, s, mine, theirs)
				equal = false
				break
			}
		}
	}
	switch {
	case !equal:
	case len(names) == 0:
		fmt.Fprintln(&r.out, "all replicas are equal")
	default:
		fmt.Fprintf(&r.out, "%s and %s are equal\n", names[0], names[1])
	}
}
