package simulation

import (
	"fmt"
	"strings"

	"samovar/internal/replication"
	"samovar/internal/replication/replica"
	"samovar/internal/volume"
)

var opNames = [...]string{
	replica.DiskRead: "read", replica.DiskWrite: "write", replica.DiskCopyWrite: "copy-write", replica.DiskZero: "zero",
	replica.DiskSync: "sync", replica.DiskReserve: "reserve", replica.LogChange: "log-change",
	replica.SaveState: "save-state", replica.SaveRecord: "save-record", replica.DropRecord: "drop-record",
	replica.SaveMissing: "save-missing",
}

func opName(op replica.DiskOp) string { return opNames[op] }

var kindNames = [...]string{
	replication.Hello: "Hello", replication.Welcome: "Welcome", replication.Refuse: "Refuse", replication.Write: "Write",
	replication.Zero: "Zero", replication.Read: "Read", replication.Sync: "Sync", replication.Ack: "Ack",
	replication.Ping: "Ping", replication.Pong: "Pong", replication.Reserve: "Reserve", replication.Prepare: "Prepare",
	replication.Accept: "Accept", replication.CatchUp: "CatchUp", replication.Records: "Records",
	replication.Settled: "Settled", replication.Copy: "Copy", replication.Cancel: "Cancel", replication.Fetch: "Fetch",
	replication.Fetched: "Fetched", replication.NeedSync: "NeedSync",
}

func piecesText(pieces []Piece) string {
	var b strings.Builder
	for i, p := range pieces {
		if i == 6 {
			fmt.Fprintf(&b, " ... %d pieces", len(pieces))
			break
		}
		fmt.Fprintf(&b, " %d+%d=", p.Range.Offset, p.Range.Length)
		if p.Hole {
			b.WriteString("hole")
		} else {
			fmt.Fprintf(&b, "#%d", p.Stamp)
		}
	}
	return b.String()
}

func metaText(q replica.DiskRequest) string {
	switch q.Op {
	case replica.LogChange:
		return fmt.Sprintf(" add %v drop %v", q.Add, q.Drop)
	case replica.SaveState:
		s := q.State
		return fmt.Sprintf(" fence %d accepted %s prepared %d catching-up %v base %d",
			s.Fence.Epoch, recordText(s.Accepted), s.Prepared, s.CatchingUp, s.Base)
	case replica.SaveRecord:
		return fmt.Sprintf(" of %d from g%d: %s", q.Record.Pool[0], q.Record.Start, blocksText(q.Record.Blocks))
	case replica.DropRecord:
		return fmt.Sprintf(" of %d", q.Record.Pool[0])
	case replica.SaveMissing:
		return " " + blocksText(q.Missing)
	}
	return ""
}

type runs interface {
	Count() uint64
	Runs(f func(from, to uint64) bool)
}

func blocksText(b runs) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d blocks", b.Count())
	n := 0
	b.Runs(func(from, to uint64) bool {
		fmt.Fprintf(&s, " %d-%d", from, to)
		n++
		return n < 8
	})
	return s.String()
}

// recordText shows a record shortly: epoch, generation, members (in-sync ones with a plus), revision.
func recordText(c volume.Configuration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "e%d/%x g%d/%x r%d [", c.Epoch, c.Engine[:2], c.Generation, c.GenerationID[:2], c.Revision)
	for _, g := range c.Groups {
		for i, m := range g.Members {
			if i > 0 {
				b.WriteByte(' ')
			}
			if m.InSync {
				fmt.Fprintf(&b, "+%d", m.Pool[0])
			} else {
				fmt.Fprintf(&b, "-%d@%d", m.Pool[0], m.Last)
			}
		}
	}
	b.WriteByte(']')
	return b.String()
}

func messageText(m replication.Message) string {
	var b strings.Builder
	b.WriteString(kindNames[m.Kind])
	if m.ID != 0 {
		fmt.Fprintf(&b, " id %d", m.ID)
	}
	if m.Range.Length != 0 {
		fmt.Fprintf(&b, " %d+%d", m.Range.Offset, m.Range.Length)
	}
	if m.Status != 0 || m.Kind == replication.Ack {
		fmt.Fprintf(&b, " %v", m.Status)
	}
	switch p := m.Payload.(type) {
	case uint64:
		fmt.Fprintf(&b, " #%d", p)
	case []Piece:
		b.WriteString(piecesText(p))
	}
	if m.Fence.Epoch != 0 {
		fmt.Fprintf(&b, " fence e%d/%x", m.Fence.Epoch, m.Fence.Engine[:2])
	}
	if m.Configuration != nil {
		b.WriteString(" " + recordText(*m.Configuration))
	}
	if m.Bitmap != nil {
		fmt.Fprintf(&b, " g%d full %v %s", m.Generation, m.Full, blocksText(m.Bitmap))
	}
	if m.Record != nil {
		fmt.Fprintf(&b, " of %d from g%d: %s", m.Record.Pool[0], m.Record.Start, blocksText(m.Record.Blocks))
	}
	if k := m.Knowledge; k != nil {
		fmt.Fprintf(&b, " %x accepted %s prepared g%d broken %v catching-up %v base %d missing %d doubt %d",
			k.Incarnation[:2], recordText(k.Accepted), k.Prepared, k.Broken, k.CatchingUp, k.Base, k.Missing.Count(),
			len(k.Doubt))
	}
	fmt.Fprintf(&b, " (completed %d flushed %d)%s", m.Completed, m.Flushed, m.Text)
	return b.String()
}
