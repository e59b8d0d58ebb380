"""Pays once, however often it has to ask: python3 pay.py URL KEY"""
import json
import random
import sys
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime


def post(url, key, body, attempts=8):
    """Sends a request until there is a final answer. Returns its status and body."""
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers={
        "Idempotency-Key": key,
        "Authorization": "Bearer demo",
        "Content-Type": "application/json",
    })
    asked_once = False
    for attempt in range(attempts):
        pause = random.uniform(0, min(5, 0.1 * 2**attempt))
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            text = refused.read()
            if not worth_repeating(refused, text, asked_once):
                return refused.code, json.loads(text or "null")
            asked_once = asked_once or refused.code not in (409, 425, 429, 502, 503, 504)
            pause += asked_for(refused) or 0
        except (OSError, ValueError) as error:  # no answer, or half of one
            print(error, file=sys.stderr)
        time.sleep(pause)
    raise TimeoutError(f"no final answer in {attempts} attempts; try again later with the same key")


def worth_repeating(refused, text, asked_once):
    if refused.headers.get("Idempotent-Replayed") == "true":
        return False  # the outcome, which does not change
    if refused.code in (429, 502, 503, 504) or refused.code == 409 and b'"in-progress"' in text:
        return True
    if asked_for(refused) is not None and refused.code in (408, 409, 425, 499, *range(500, 600)):
        return True
    return not asked_once and refused.code in (408, 499, *range(500, 600))  # one repeat tells what became of it


def asked_for(refused):
    """The pause in seconds that the server asks for, or None. It is a number or a date."""
    value = refused.headers.get("Retry-After", "")
    try:
        return float(value) if value.isdigit() else max(0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


if __name__ == "__main__":
    url, key = sys.argv[1:]
    status, answer = post(url + "/v1/payments", key, {
        "from": "alice", "to": "bob", "amount": 1250, "currency": "USD", "note": key})
    print(json.dumps(answer))
    sys.exit(status != 201)
