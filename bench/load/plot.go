package load

import (
	_ "embed"
	"fmt"
	"io"
	"slices"
	"text/template"
)

//go:embed plot.svg.tmpl
var plotText string

var plotTemplate = template.Must(template.New("plot").Parse(plotText))

// Sizes of the plot, in pixels.
const (
	plotNames  = 225 // width of the names of cases
	plotColumn = 250 // width of a column with its gap
	plotBar    = 175 // the longest bar of a column
	plotTop    = 98
	plotRow    = 24
	plotGap    = 4 // between a bar and its value
)

// plotConnections is where the processor time is shown, if it was measured there.
const plotConnections = 64

// Colours that readers with colour blindness can tell apart.
const (
	serviceColor   = "#4269d0"
	zooKeeperColor = "#efb118"
	redisColor     = "#ff725c"
	rateColor      = "#6cc5b0"
)

// plot is the data of the template.
type plot struct {
	Width, Height int
	Subtitle      string
	Legend        []plotLegend
	Titles        []plotValue
	Rows          []plotCase
}

type plotLegend struct {
	X, TextX    int
	Color, Name string
}

type plotCase struct {
	Name     string
	Y, TextY int
	Bars     []plotRect
	Values   []plotValue
}

type plotRect struct {
	X, Width float64
	Color    string
}

type plotValue struct {
	X    float64
	Text string
}

// WritePlot writes an SVG with a row for each case. The first column has the processor
// time with 64 connections, and a column for each number of connections has the rates.
func (r *Result) WritePlot(out io.Writer) error {
	p := plot{
		Width:    plotNames + plotColumn*(1+len(r.Settings.Connections)),
		Subtitle: fmt.Sprintf("%s. Medians of %d rounds.", r.Machine, r.Settings.Rounds),
	}
	for i, part := range []struct{ color, name string }{
		{serviceColor, "service"}, {zooKeeperColor, "ZooKeeper"}, {redisColor, "Redis"}, {rateColor, "requests a second"},
	} {
		x := plotNames + i*90
		p.Legend = append(p.Legend, plotLegend{X: x, TextX: x + 16, Color: part.color, Name: part.name})
	}
	p.Rows = r.plotRows()
	p.Height = plotTop + plotRow*len(p.Rows) + 10

	at := r.Settings.Connections[0]
	if slices.Contains(r.Settings.Connections, plotConnections) {
		at = plotConnections
	}
	p.addColumn(r, 0, at, fmt.Sprintf("µs per request, connections: %d", at), func(w Window) float64 { return w.Processor }, func(w Window) []plotRect {
		return []plotRect{{Width: w.Service, Color: serviceColor}, {Width: w.ZooKeeper, Color: zooKeeperColor}, {Width: w.Redis, Color: redisColor}}
	})
	for i, connections := range r.Settings.Connections {
		p.addColumn(r, i+1, connections, fmt.Sprintf("requests/s, connections: %d", connections), func(w Window) float64 { return w.Rate }, func(w Window) []plotRect {
			return []plotRect{{Width: w.Rate, Color: rateColor}}
		})
	}
	return plotTemplate.Execute(out, p)
}

// plotRows makes a row for each case that has a figure in some column.
func (r *Result) plotRows() (rows []plotCase) {
	for _, c := range cases {
		for _, connections := range r.Settings.Connections {
			if r.find(c.name, connections) != nil {
				y := plotTop + plotRow*len(rows)
				rows = append(rows, plotCase{Name: c.name, Y: y, TextY: y + 12})
				break
			}
		}
	}
	return rows
}

// addColumn adds a bar to each row. The longest one fills the column. The widths of parts
// are in the unit of value.
func (p *plot) addColumn(r *Result, column, connections int, title string, value func(Window) float64, parts func(Window) []plotRect) {
	left := float64(plotNames + column*plotColumn)
	p.Titles = append(p.Titles, plotValue{X: left, Text: title})
	var most float64
	for _, row := range p.Rows {
		if c := r.find(row.Name, connections); c != nil {
			most = max(most, value(c.Median))
		}
	}
	for i := range p.Rows {
		row := &p.Rows[i]
		c := r.find(row.Name, connections)
		if c == nil {
			continue
		}
		x := left
		for _, part := range parts(c.Median) {
			part.X, part.Width = x, part.Width/most*plotBar
			x += part.Width
			row.Bars = append(row.Bars, part)
		}
		row.Values = append(row.Values, plotValue{X: x + plotGap, Text: whole(value(c.Median))})
	}
}
