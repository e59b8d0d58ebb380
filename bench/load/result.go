package load

import "slices"

// Result is everything that was measured.
type Result struct {
	Machine  string       `json:"machine"`
	Settings Settings     `json:"settings"`
	Cases    []CaseResult `json:"cases"`
	Records  *Records     `json:"records,omitempty"`
	Goals    []GoalResult `json:"goals"`
}

// CaseResult has the windows of a case at one number of connections.
type CaseResult struct {
	Case        string   `json:"case"`
	Connections int      `json:"connections"`
	Trips       int      `json:"trips"` // on the critical path, with a delay only. See trips
	Median      Window   `json:"median"`
	Rounds      []Window `json:"rounds"`
}

// find returns nil if that was not measured.
func (r *Result) find(name string, connections int) *CaseResult {
	for i := range r.Cases {
		if c := &r.Cases[i]; c.Case == name && c.Connections == connections {
			return c
		}
	}
	return nil
}

// medianOf takes the median of each figure.
func medianOf(rounds []Window) (w Window) {
	for i, figure := range w.figures() {
		var values []float64
		for _, r := range rounds {
			values = append(values, *r.figures()[i])
		}
		*figure = median(values)
	}
	return w
}

// median needs at least one value.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}
