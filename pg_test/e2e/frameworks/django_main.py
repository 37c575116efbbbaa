"""django_main.py lead CONSUMER | write FENCE | autocommit: the reader's part of settings.py and of the command `lead`."""

import json
import os
import sys
import unittest

import django
import psycopg
from django.conf import settings
from django.core.management import call_command
from django.db import Error, connections, models, transaction
from django.http import HttpResponse
from django.test import Client, TestCase
from django.urls import path
from settings import DATABASES

if os.environ.get("BIND_IN_CLIENT"):
    assert DATABASES["default"]["OPTIONS"].pop("server_side_binding")
settings.configure(
    DATABASES=DATABASES, INSTALLED_APPS=["orders"], ROOT_URLCONF=__name__, ALLOWED_HOSTS=["testserver"], USE_TZ=True, SECRET_KEY="-"
)
django.setup()


class Applied(models.Model):
    id = models.BigAutoField(primary_key=True)
    consumer = models.TextField()

    class Meta:
        app_label, db_table = "orders", "applied"


def work():
    Applied.objects.create(consumer=sys.argv[2])
    return False


def told(alias):
    """Returns what another connection is told of a session that was opened on this one."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT session FROM eskit_lease.session_open('web', '1 min')")
        (session,) = cursor.fetchone()
    with psycopg.connect(os.environ["DATABASE_URL"]) as other:
        return other.execute("SELECT reason FROM eskit_lease.session_heartbeat(%s)", (session,)).fetchone()[0]


urlpatterns = [path("<alias>", lambda request, alias: HttpResponse(told(alias)))]


class Case(TestCase):
    databases = "__all__"
    answer = None

    def runTest(self):
        Case.answer = told("default")


def autocommit():
    assert unittest.TestSuite([Case()]).run(unittest.TestResult()).wasSuccessful()
    answers = {"outside": told("default"), "request": Client().get("/default").content.decode(), "TestCase": Case.answer}
    answers["leases in a request"] = Client().get("/leases").content.decode()
    with transaction.atomic():
        answers |= {"atomic": told("default"), "leases in atomic": told("leases")}
    print(json.dumps(answers))


if __name__ == "__main__":
    sys.modules["orders.batch"] = sys.modules["__main__"]  # where the command finds the reader's work()
    from orders.management.commands.lead import fenced

    try:
        match sys.argv[1]:
            case "lead":
                call_command("lead", sys.argv[2])
            case "write":
                fenced(int(sys.argv[2]), work)
            case "autocommit":
                autocommit()
    except Error as error:
        print(error.__cause__.sqlstate)
